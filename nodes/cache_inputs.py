"""The single settings of the step cache as inputs of a node; left alone, each is the preset's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from comfy_api.latest import io

from ..engine.cache.environment import bins
from ..engine.cache.settings import POLICIES, SCM_PRESETS
from ..protocol.errors import InvalidRequestError
from ..protocol.messages.cache import CacheValue
from .compat import known

#: What leaves a setting to the preset: as a word, as text, as a number, and where -1 means any number.
AS_PRESET, EMPTY, BELOW, BELOW_ANY = "preset", "", -1, -2
ON, OFF = "on", "off"
ORDER, TAYLORSEER = "taylorseer_order", "enable_taylorseer"
MOST = 10000

COUNTS: Mapping[str, tuple[int, str]] = {
    "Fn_compute_blocks": (
        BELOW,
        "First blocks, run at every step to tell how much it differs. More: closer, slower.",
    ),
    "Bn_compute_blocks": (
        BELOW,
        "Last blocks, run at every step to mend what was reused. More: closer, slower.",
    ),
    "max_warmup_steps": (
        BELOW,
        "First steps, which decide what the picture shows, computed. More: closer, slower.",
    ),
    "warmup_interval": (BELOW, "Of the first steps one in so many is computed. More: faster, further off."),
    "max_cached_steps": (BELOW_ANY, "Most steps to reuse in all; -1: any. Fewer: closer, slower."),
    "max_continuous_cached_steps": (
        BELOW_ANY,
        "Most steps to reuse in a row; -1: any. Fewer: closer, slower.",
    ),
}
DISTANCES: Mapping[str, str] = {
    "residual_diff_threshold": "How far a reused step may be from the last computed one. Higher: faster, "
    "further off. 0.08 is careful, 0.24 bold; from 1 on all are reused, at 0 none.",
    "max_accumulated_residual_diff_threshold": "Most that distances may add up to. Lower: closer, slower.",
}
WORDS: Mapping[str, tuple[tuple[str, ...], str]] = {
    ORDER: (
        ("0", "1", "2"),
        "0 repeats the last computed step; 1 and 2 extrapolate: closer, as fast, for more memory.",
    ),
    "enable_encoder_taylorseer": ((ON, OFF), "Extrapolate the text tokens as well. No matter for speed."),
    "scm_preset": (
        SCM_PRESETS,
        "A mask: slow computes 75 % of the steps, medium 50, fast 35, ultra 25. Fewer: faster, further off.",
    ),
    "steps_computation_policy": (
        POLICIES,
        "Steps outside the mask are reused always (static), or below the threshold (dynamic: closer).",
    ),
    "skip_fn_on_static": ((ON, OFF), "A static mask skips the first blocks too: faster, and nothing looks."),
}
LISTS: Mapping[str, str] = {
    "steps_computation_mask": "1 (compute) or 0 for each step of the run: 1,1,0,1,0,1.",
    "scm_compute_bins": "Stretches of computed steps, in turn with scm_cache_bins, for the whole run: 6,1,1.",
    "scm_cache_bins": "Stretches of reused steps between them: 2,5,5.",
}


def single_inputs() -> list[Any]:
    """One optional input for each setting."""
    return [
        *(_count(name, least, says) for name, (least, says) in COUNTS.items()),
        *(_distance(name, says) for name, says in DISTANCES.items()),
        *(_word(name, options, says) for name, (options, says) in WORDS.items()),
        *(_list(name, says) for name, says in LISTS.items()),
    ]


def values_of(inputs: Mapping[str, Any]) -> dict[str, CacheValue]:
    """The settings that do not leave the matter to the preset. Raises InvalidRequestError naming a list."""
    found: dict[str, CacheValue] = {}
    for name, value in inputs.items():
        if value in (AS_PRESET, EMPTY, COUNTS[name][0] if name in COUNTS else BELOW):
            continue
        if name in LISTS:
            found[name] = _numbers(name, value)
        elif name == ORDER:
            found |= {ORDER: int(value), TAYLORSEER: value != "0"}
        else:
            found[name] = value == ON if value in (ON, OFF) else value
    return found


def _numbers(name: str, text: str) -> list[int]:
    try:
        return list(bins(text))
    except ValueError as error:
        raise InvalidRequestError(f"The step cache's {name} is {text!r}; it must be {error}.") from error


def _count(name: str, least: int, says: str) -> Any:
    return io.Int.Input(
        name, default=least, min=least, max=MOST, **_common(io.Int, f"{says} {least}: preset.")
    )


def _distance(name: str, says: str) -> Any:
    least, common = float(BELOW), _common(io.Float, f"{says} {BELOW}: preset.")
    return io.Float.Input(name, default=least, min=least, max=100.0, step=0.01, round=0.0001, **common)


def _word(name: str, options: tuple[str, ...], says: str) -> Any:
    return io.Combo.Input(name, options=[AS_PRESET, *options], default=AS_PRESET, **_common(io.Combo, says))


def _list(name: str, says: str) -> Any:
    return io.String.Input(name, default=EMPTY, **_common(io.String, f"{says} Empty: preset."))


def _common(kind: Any, tooltip: str) -> dict[str, Any]:
    return {"optional": True, "tooltip": tooltip, **known(kind.Input.__init__, advanced=True)}
