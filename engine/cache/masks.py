"""Which steps of a run are computed, for any number of steps: spread evenly, or as bins say."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from ...protocol.errors import InvalidRequestError
from .settings import ScmPreset, Settings

Mask = tuple[int, ...]

#: The part of the steps that is computed, as published.
SHARES: Mapping[ScmPreset, float] = {"slow": 0.75, "medium": 0.50, "fast": 0.35, "ultra": 0.25}
#: In fewer steps than this a named mask is not used: none of them can be spared unseen.
FEWEST_STEPS = 8
#: Steps computed one after the other at the start, so that there is a slope to extrapolate with.
LEAD = 2


def spread(share: float, steps: int) -> Mask:
    """A mask that computes `share` (0 to 1) of `steps` >= 1 steps.

    The first steps and the last are computed; the stretches skipped between the others differ by one at most.
    """
    count = min(steps, max(1, math.floor(share * steps + 0.5)))
    lead = min(LEAD, max(1, count - 1))
    rest = count - lead
    computed = {*range(lead), *(lead - 1 + -(-(steps - lead) * turn // rest) for turn in range(1, rest + 1))}
    return tuple(int(step in computed) for step in range(steps))


def from_bins(compute: Sequence[int], cache: Sequence[int], steps: int) -> Mask:
    """Stretches of computed and skipped steps in turn; InvalidRequestError when they are not `steps`."""
    if sum(compute) + sum(cache) != steps:
        raise InvalidRequestError(
            f"Step cache: the bins {list(compute)} and {list(cache)} are for {sum(compute) + sum(cache)} "
            f"steps, the run has {steps}.",
            hint="Give bins that add up to the steps, or name a mask: slow, medium, fast or ultra.",
        )
    mask: list[int] = []
    for number, length in enumerate(compute):
        mask += [1] * length + [0] * (cache[number] if number < len(cache) else 0)
    return tuple(mask)


def mask_of(settings: Settings, steps: int) -> Mask | None:
    """The mask of a run, None when every step is looked at; InvalidRequestError when one does not fit."""
    if settings.scm_compute_bins:
        return from_bins(settings.scm_compute_bins, settings.scm_cache_bins, steps)
    if settings.steps_computation_mask:
        if len(settings.steps_computation_mask) != steps:
            raise InvalidRequestError(
                f"Step cache: the steps_computation_mask is for {len(settings.steps_computation_mask)} "
                f"steps, the run has {steps}.",
                hint="Give one entry for each step, or name a mask: slow, medium, fast or ultra.",
            )
        return settings.steps_computation_mask
    if settings.scm_preset == "none" or steps < FEWEST_STEPS:
        return None
    return spread(SHARES[settings.scm_preset], steps)
