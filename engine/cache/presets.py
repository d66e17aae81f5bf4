"""The step cache by one word: what `quality`, `balanced` and `fast` mean for a family and a number of steps.

All of the tuning is in the table; `outboard bench cache` measures what it gives.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal, NamedTuple

from ...protocol.errors import InvalidRequestError
from .settings import Settings

Preset = Literal["quality", "balanced", "fast"]
PRESETS: tuple[Preset, ...] = ("quality", "balanced", "fast")


class Band(NamedTuple):
    """Settings for runs of `fewest` steps and more, up to the next band."""

    fewest: int
    settings: Settings


_STATIC = Settings(
    Fn_compute_blocks=1, steps_computation_policy="static", scm_preset="medium", taylorseer_order=1
)
_DYNAMIC = Settings(Fn_compute_blocks=1, max_continuous_cached_steps=1)

#: For every family that has no entry of its own.
ANY: Mapping[Preset, Sequence[Band]] = {
    "quality": (
        Band(1, replace(_DYNAMIC, max_warmup_steps=2, residual_diff_threshold=0.08)),
        Band(8, replace(_STATIC, scm_preset="medium")),
    ),
    "balanced": (
        Band(1, replace(_DYNAMIC, max_warmup_steps=2, residual_diff_threshold=0.16)),
        Band(8, replace(_STATIC, scm_preset="medium", skip_fn_on_static=True)),
    ),
    "fast": (
        Band(1, replace(_DYNAMIC, max_warmup_steps=1, residual_diff_threshold=0.24)),
        Band(8, replace(_STATIC, scm_preset="fast", skip_fn_on_static=True)),
    ),
}
TABLE: Mapping[str, Mapping[Preset, Sequence[Band]]] = {"": ANY}


def preset(name: str, family: str, steps: int) -> Settings:
    """The settings of a preset for a run of `steps` >= 1 steps of `family`. Raises InvalidRequestError."""
    if name not in PRESETS:
        raise InvalidRequestError(
            f"There is no step cache preset {name!r}.", hint=f"Choose one of {', '.join(PRESETS)}, or off."
        )
    known: Mapping[str, Sequence[Band]] = {**ANY, **TABLE.get(family, {})}
    return [band for band in known[name] if band.fewest <= steps][-1].settings
