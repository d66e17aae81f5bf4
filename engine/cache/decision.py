"""Whether one row of a step is computed or reused: pure rules over its own past, by cache-dit's meaning."""

from __future__ import annotations

from dataclasses import dataclass, replace

from .plan import Need
from .settings import Settings


@dataclass(frozen=True)
class Counters:
    """The past of one row. `level` is the last place in the schedule it was asked at.

    Calls at one level count as one step, however many a sampler makes.
    """

    cached: int = 0
    continuous: int = 0
    accumulated: float = 0.0
    level: float | None = None
    reusing: bool = False

    def after(self, *, reused: bool, level: float, difference: float = 0.0) -> Counters:
        """The counters once the step is over; `difference` is what was measured, 0 when nothing was."""
        new = reused and not (self.reusing and level == self.level)
        return replace(
            self,
            cached=self.cached + new,
            continuous=self.continuous + new if reused else 0,
            accumulated=self.accumulated + max(difference, 0.0),
            level=level,
            reusing=reused,
        )


def limited(counters: Counters, settings: Settings) -> bool:
    """Whether the row may skip no more."""
    most, in_a_row = settings.max_cached_steps, settings.max_continuous_cached_steps
    total = settings.max_accumulated_residual_diff_threshold
    return (
        0 <= most <= counters.cached
        or 0 <= in_a_row <= counters.continuous
        or (total is not None and counters.accumulated >= total)
    )


def settle(need: Need, counters: Counters, settings: Settings) -> Need:
    """What is left of `need` after the limits; COMPARE only when a distance has to be measured."""
    if need is not Need.COMPARE:
        return need
    if limited(counters, settings) or settings.residual_diff_threshold <= 0:
        return Need.COMPUTE
    return Need.REUSE if settings.residual_diff_threshold >= 1 else Need.COMPARE
