"""Where the golden vectors live, and how to list them."""

from __future__ import annotations

import functools
import json
import os
from pathlib import Path
from typing import Any

import pytest

SUMMARY = pytest.StashKey[list[str]]()
"""`config.stash[SUMMARY]`: lines for the end of the test run, such as what had no counterpart to compare."""

_REPOSITORY = Path(__file__).resolve().parents[2]


def golden_root() -> Path:
    """Return the folder: `OUTBOARD_GOLDEN`, else `../shared/golden` beside the repository, else tests/golden.

    Raises `FileNotFoundError` naming the folder when it holds no index.json.
    """
    named = os.environ.get("OUTBOARD_GOLDEN")
    beside = _REPOSITORY.parent / "shared" / "golden"
    here = Path(__file__).resolve().parent
    root = Path(named) if named else (beside if beside.is_dir() else here)
    if not (root / "index.json").is_file():
        raise FileNotFoundError(f"no index.json in {root}; set OUTBOARD_GOLDEN to the golden vectors' folder")
    return root


@functools.cache
def index() -> dict[str, Any]:
    """Return index.json, parsed."""
    return _object(golden_root() / "index.json")


def entries(kind: str, *, absent_ok: bool = False) -> list[dict[str, Any]]:
    """Return the index's file entries of one kind, such as "case", "checkpoint", "lora" or "sampling".

    Raises `LookupError` naming the kinds there are when none matches, so that a test never runs on nothing;
    `absent_ok` is for kinds that the small folder of a plain clone has no room for.
    """
    files: list[dict[str, Any]] = index()["files"]
    found = [entry for entry in files if entry.get("kind") == kind]
    if not found and not absent_ok:
        kinds = sorted({str(entry.get("kind")) for entry in files})
        raise LookupError(f"no golden file of kind {kind!r}; the index has {', '.join(kinds)}")
    return found


def read_json(name: str) -> dict[str, Any]:
    """Return a JSON file of the golden folder, parsed; `name` is relative to the folder."""
    return _object(golden_root() / name)


def _object(path: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return loaded
