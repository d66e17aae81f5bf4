"""The YAML file of cache-dit, as users of SGLang have it: its `cache_config` section becomes a Choice.

Form: https://github.com/vipshop/cache-dit (Apache-2.0), docs/LOAD_CONFIGS.md.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import yaml

from ...protocol.errors import InvalidRequestError
from .choice import ENABLE_TAYLORSEER, KNOWN, Choice
from .masks import SHARES
from .settings import Settings

log = logging.getLogger(__name__)

SECTION = "cache_config"
#: Sections of the same file that are not the cache's: one is read elsewhere, the others by nothing yet.
PARALLEL = "parallelism_config"
UNREAD = frozenset({"attention_backend", "quantize_config"})
#: Keys that say what is always so here: each branch has its own state, and a run says how many steps it has.
NOT_NEEDED = frozenset({"enable_separate_cfg", "enable_sperate_cfg", "num_inference_steps"})
#: Keys with one value that is what is done here anyway.
FIXED: Mapping[str, object] = {
    "cache_type": "DBCache",
    "taylorseer_cache_type": "residual",
    "calibrator_cache_type": "residual",
    "cfg_compute_first": False,
    "cfg_diff_compute_separate": True,
    "enable_dmd": False,
    "enable_foca": False,
}
WHOLE = frozenset(
    {
        "Fn_compute_blocks",
        "Bn_compute_blocks",
        "max_warmup_steps",
        "warmup_interval",
        "max_cached_steps",
        "max_continuous_cached_steps",
        "taylorseer_order",
        "num_inference_steps",
    }
)
NUMBERS = frozenset({"residual_diff_threshold", "max_accumulated_residual_diff_threshold"})
FLAGS = frozenset(
    {
        ENABLE_TAYLORSEER,
        "enable_encoder_taylorseer",
        "skip_fn_on_static",
        "enable_separate_cfg",
        "enable_sperate_cfg",
    }
)
LISTS = frozenset({"steps_computation_mask", "scm_compute_bins", "scm_cache_bins"})


def read_file(path: Path) -> Choice | None:
    """The choice in a file, None without a `cache_config`; InvalidRequestError names file and key."""
    return read_mapping(content_of(path), str(path))


def content_of(path: Path) -> object:
    """What a YAML file holds. Raises InvalidRequestError naming it when it is none."""
    try:
        return yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise InvalidRequestError(
            f"{path}: no readable YAML: {error}.", hint="See docs/from-sglang.md for the form."
        ) from error


def read_mapping(content: object, origin: str) -> Choice | None:
    """The same of a file's content; `origin` names it in errors."""
    if not isinstance(content, Mapping):
        raise InvalidRequestError(f"{origin}: it must hold sections, such as cache_config.")
    for name in content:
        if name not in (SECTION, PARALLEL, *UNREAD):
            raise InvalidRequestError(
                f"{origin}: there is no section {name!r}.", hint=f"Cache settings go under `{SECTION}:`."
            )
        if name in UNREAD:
            log.warning("%s: the section %s has no effect: the engine does not read it yet.", origin, name)
    section = content.get(SECTION)
    if SECTION not in content:
        return None
    if not isinstance(section, Mapping):
        raise InvalidRequestError(f"{origin}: {SECTION} must hold keys and values.")
    values: dict[str, Any] = {}
    for name, value in section.items():
        if value is not None:
            values |= _value(str(name), value, f"{origin}: {SECTION}.{name}")
    return Choice(values=values, origin=origin)


def dump(settings: Settings) -> str:
    """The text of a file that is read back as these settings, whatever the defaults of a reader."""
    given = {field.name: getattr(settings, field.name) for field in fields(settings)}
    mask = given.pop("scm_preset")
    values = {name: list(value) if isinstance(value, tuple) else value for name, value in given.items()}
    written = {name: value for name, value in values.items() if value not in ([], None)}
    written[ENABLE_TAYLORSEER] = settings.taylorseer_order > 0
    if mask != "none":
        written["steps_computation_mask"] = mask
    text: str = yaml.safe_dump({SECTION: written}, sort_keys=False)
    return text


def _value(name: str, value: object, where: str) -> dict[str, Any]:
    if name in FIXED:
        _require(value == FIXED[name], where, value, f"{FIXED[name]!r}, the only one there is here")
        return {}
    if name == "steps_computation_mask" and isinstance(value, str):
        _require(value in SHARES, where, value, f"one of {', '.join(SHARES)}, or a list of 0 and 1")
        return {"scm_preset": value}
    if name not in KNOWN | NOT_NEEDED:
        raise InvalidRequestError(f"{where}: the step cache knows no such key.", hint=f"It knows {_known()}.")
    for kind, names, fits, what in _KINDS:
        if name in names:
            _require(fits(value), where, value, what)
            return {} if name in NOT_NEEDED else {name: kind(value)}
    _require(isinstance(value, str), where, value, "text")
    return {name: value}


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_list(value: object) -> bool:
    return isinstance(value, list) and all(map(_is_whole, value))


_Kind = tuple[Callable[[Any], object], frozenset[str], Callable[[object], bool], str]
_KINDS: tuple[_Kind, ...] = (
    (int, WHOLE, _is_whole, "a whole number"),
    (float, NUMBERS, _is_number, "a number"),
    (bool, FLAGS, lambda value: isinstance(value, bool), "true or false"),
    (tuple, LISTS, _is_list, "a list of whole numbers"),
)


def _known() -> str:
    return ", ".join(sorted(KNOWN | NOT_NEEDED))


def _require(holds: bool, where: str, value: object, what: str) -> None:
    if not holds:
        raise InvalidRequestError(f"{where} is {value!r}; it must be {what}.")
