"""Which step cache an engine is configured with: from files and variables, the more deliberate one first.

    the request's own            a node's or caller's choice
    a file on the command line   --cache-dit-config FILE
    OUTBOARD_CACHE_*             single values on top of OUTBOARD_CACHE_PRESET or OUTBOARD_CACHE_CONFIG
    SGLANG_CACHE_DIT_*           when SGLANG_CACHE_DIT_ENABLED is true

A file or a preset is a whole choice and hides what is below it; single values change only themselves.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ...protocol.errors import InvalidRequestError
from ..config import parse_bytes
from . import environment
from .choice import Choice
from .environment import OUTBOARD, OWN, SECONDARY, SGLANG, SGLANG_DEFAULTS, SHARED, Reading
from .yaml_form import read_file

ENABLED, PRESET, CONFIG, BUDGET = "ENABLED", "PRESET", "CONFIG", "BUDGET"
#: The preset of a cache that is enabled and no more.
DEFAULT = "balanced"


@dataclass(frozen=True)
class CacheConfig:
    """The choice for a model, None for no cache, and for the second transformer of a model that has two.

    `budget` is in bytes, 0 for any number.
    """

    primary: Choice | None = None
    secondary: Choice | None = None
    budget: int = 0


def read_config(variables: Mapping[str, str], file: Path | None = None) -> CacheConfig:
    """What `variables` and a file from the command line say together.

    Every variable of either prefix is checked, used or not: an unknown one raises InvalidRequestError.
    """
    budget = parse_bytes(variables.get(OUTBOARD + BUDGET) or "0")
    sglang, sglang_second = _sglang(variables)
    primary = _outboard(variables, OUTBOARD, sglang)
    below = sglang_second if primary is sglang else primary
    secondary = _outboard(variables, OUTBOARD + SECONDARY, below)
    if file is not None:
        primary = secondary = read_file(file)
    return CacheConfig(primary, secondary, budget)


def _sglang(variables: Mapping[str, str]) -> tuple[Choice | None, Choice | None]:
    others = frozenset({ENABLED})
    values = environment.read(variables, SGLANG, SHARED, others)
    second = environment.read(variables, SGLANG + SECONDARY, SHARED, others)
    if not _enabled(variables, SGLANG + ENABLED, default=False):
        return None, None
    choice = Choice(values=SGLANG_DEFAULTS, origin=f"{SGLANG}*").updated(values, f"{SGLANG}*")
    if not _enabled(variables, SGLANG + SECONDARY + ENABLED, default=True):
        return choice, None
    return choice, choice.updated(second, f"{SGLANG}{SECONDARY}*")


def _outboard(variables: Mapping[str, str], prefix: str, below: Choice | None) -> Choice | None:
    endings: Mapping[str, Reading] = {**SHARED, **OWN}
    values = environment.read(variables, prefix, endings, frozenset({ENABLED, PRESET, CONFIG, BUDGET}))
    name, path = variables.get(prefix + PRESET, ""), variables.get(prefix + CONFIG, "")
    if name and path:
        raise InvalidRequestError(
            f"{prefix}{PRESET} and {prefix}{CONFIG} are both set; each is a whole choice."
        )
    if not _enabled(variables, prefix + ENABLED, default=True):
        return None
    choice = below
    if path:
        choice = read_file(Path(path))
    elif name:
        choice = Choice(name, origin=prefix + PRESET)
    if choice is None and _enabled(variables, prefix + ENABLED, default=False):
        choice = Choice(DEFAULT, origin=prefix + ENABLED)
    if not values:
        return choice
    return (choice or Choice(values=SGLANG_DEFAULTS)).updated(values, f"{prefix}*")


def _enabled(variables: Mapping[str, str], name: str, *, default: bool) -> bool:
    text = variables.get(name, "")
    if not text.strip():
        return default
    try:
        return environment.flag(text)
    except ValueError as error:
        raise InvalidRequestError(f"{name} is {text!r}; it must be {error}.") from error
