"""Skipped layers as data: the function of ComfyUI's skip-layer guidance, known for what it is, as numbers.

SkipLayerGuidanceDiT, its Simple form and SkipLayerGuidanceSD3 replace blocks by a function that returns what
it is given. That function alone is read as data; whatever else replaces a block stays code.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import FunctionType
from typing import Any

import comfy.samplers

#: The table of replaced blocks in "patches_replace": (kind, number) -> function.
TABLE = "dit"
KINDS = ("double_block", "single_block")
_VARIADIC = 0x0C  # a code's flags for *args and **keywords
_FILE = Path(comfy.samplers.__file__).resolve().parents[1] / "comfy_extras" / "nodes_slg.py"
_NAMES = frozenset(
    f"{node}.execute.<locals>.skip" for node in ("SkipLayerGuidanceDiT", "SkipLayerGuidanceDiTSimple")
)


def _first(args: Any, extra_args: Any) -> Any:
    return args


def only_skips(replaced: Mapping[str, Any]) -> bool:
    """Whether every block that `replaced` ("patches_replace") replaces is merely skipped."""
    return all(_is_block(key) and _is_skip(function) for key, function in _table(replaced).items())


def blocks(transformer_options: Mapping[str, Any]) -> dict[str, list[int]] | None:
    """The skipped blocks by kind, for options that passed refusals.check_options; None for none."""
    keys = _table(transformer_options.get("patches_replace") or {}).keys()
    numbers = {kind: sorted(number for found, number in keys if found == kind) for kind in KINDS}
    return {kind: found for kind, found in numbers.items() if found} or None


def _table(replaced: Mapping[str, Any]) -> Mapping[Any, Any]:
    return replaced.get(TABLE) or {}


def _is_block(key: Any) -> bool:
    return isinstance(key, tuple) and len(key) == 2 and key[0] in KINDS and type(key[1]) is int


def _is_skip(function: Any) -> bool:
    """By file, name and code: a function of that name in a later ComfyUI may do more."""
    if not isinstance(function, FunctionType) or function.__qualname__ not in _NAMES:
        return False
    code = function.__code__
    plain = function.__closure__ is None and code.co_argcount == 2 and not code.co_flags & _VARIADIC
    return plain and code.co_code == _first.__code__.co_code and _is_stock(code.co_filename)


@cache
def _is_stock(path: str) -> bool:
    return Path(path).resolve() == _FILE
