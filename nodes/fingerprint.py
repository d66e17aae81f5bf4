"""Whether a function is the one this pack was written against, told by its source."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import lru_cache
from hashlib import blake2b
from types import CodeType
from typing import Any


def fingerprint(*functions: Callable[..., Any]) -> str:
    """A digest over the source of `functions`, without indentation, empty lines and comment lines.

    "" when the source cannot be had. A formula that changes in another ComfyUI has another digest.
    """
    codes = [getattr(function, "__code__", None) for function in functions]
    if not all(isinstance(code, CodeType) for code in codes):
        return ""
    return _digest(tuple(codes))


@lru_cache(maxsize=256)
def _digest(codes: tuple[CodeType, ...]) -> str:
    try:
        sources = [inspect.getsource(code) for code in codes]
    except (OSError, TypeError):
        return ""
    lines = [line.strip() for source in sources for line in source.splitlines()]
    kept = "\n".join(line for line in lines if line and not line.startswith("#"))
    return blake2b(kept.encode(), digest_size=8).hexdigest()
