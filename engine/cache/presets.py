"""The step cache by one word: what `quality`, `balanced` and `fast` mean for a family and a number of steps.

All of the tuning is in the table; `outboard bench cache` measures what it gives.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal, NamedTuple

from ...protocol.errors import InvalidRequestError
from .masks import spread
from .settings import Policy, Settings

Preset = Literal["quality", "balanced", "fast"]
PRESETS: tuple[Preset, ...] = ("quality", "balanced", "fast")


class Band(NamedTuple):
    """Settings for runs of `fewest` steps and more, up to the next band.

    `share` of the steps are computed, 0 for no mask.
    """

    fewest: int
    settings: Settings
    share: float = 0.0

    def of(self, steps: int) -> Settings:
        """The settings with the mask of a run of `steps` steps."""
        if not self.share:
            return self.settings
        policy: Policy = "dynamic" if self.settings.residual_diff_threshold else "static"
        return replace(
            self.settings,
            steps_computation_mask=spread(self.share, steps),
            steps_computation_policy=policy,
            skip_fn_on_static=policy == "static",
        )


#: Too few steps for a mask: each is compared with the last, and none is skipped after another.
_FEW = Settings(Fn_compute_blocks=1, max_warmup_steps=2, max_continuous_cached_steps=1)
#: A mask says which steps may be skipped, and the distance is a guard against a trajectory that jumps.
_GUARDED = Settings(Fn_compute_blocks=1, taylorseer_order=1, residual_diff_threshold=0.5)
#: The mask alone decides, and a skipped step runs no block at all. Where steps are few, each is so far from
#: the next that a slope misleads: there, what was added last is repeated.
_BLIND = replace(_GUARDED, residual_diff_threshold=0.0)

ANY: Mapping[str, Sequence[Band]] = {
    "quality": (
        Band(1, replace(_FEW, residual_diff_threshold=0.08)),
        Band(8, replace(_GUARDED, taylorseer_order=0), 0.75),
        Band(16, _GUARDED, 0.50),
    ),
    "balanced": (
        Band(1, replace(_FEW, residual_diff_threshold=0.16)),
        Band(8, replace(_BLIND, taylorseer_order=0), 0.60),
        Band(16, _BLIND, 0.40),
    ),
    "fast": (
        Band(1, replace(_FEW, residual_diff_threshold=0.24, max_warmup_steps=1)),
        Band(8, replace(_BLIND, taylorseer_order=0), 0.50),
        Band(16, _BLIND, 0.35),
        Band(24, _BLIND, 0.30),
    ),
}
#: By family; "" stands for those without an entry.
TABLE: Mapping[str, Mapping[str, Sequence[Band]]] = {"": ANY}


def preset(name: str, family: str, steps: int) -> Settings:
    """The settings of a preset for a run of `steps` >= 1 steps of `family`. Raises InvalidRequestError."""
    if name not in PRESETS:
        raise InvalidRequestError(
            f"There is no step cache preset {name!r}.", hint=f"Choose one of {', '.join(PRESETS)}, or off."
        )
    bands = TABLE.get(family, ANY)[name]
    return [band for band in bands if band.fewest <= steps][-1].of(steps)
