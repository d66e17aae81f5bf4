"""The package's own version: pyproject.toml is its one place, a wheel's metadata repeats it."""

from __future__ import annotations

import re
from functools import cache
from importlib import metadata
from pathlib import Path

DISTRIBUTION = "comfyui-outboard"
_PROJECT = Path(__file__).resolve().parents[1] / "pyproject.toml"
_VERSION = re.compile(r'^version = "([^"]+)"$', re.MULTILINE)


@cache
def release() -> str:
    """The version of the code that runs, PEP 440: the clone's before the installed one's."""
    try:
        found = _VERSION.search(_PROJECT.read_text(encoding="utf-8"))
    except FileNotFoundError:
        found = None
    return found[1] if found else metadata.version(DISTRIBUTION)
