"""All changes of a run in the order they are made, whatever the order in which they came."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

from ....protocol.errors import InvalidRequestError
from ....protocol.messages.base import Record
from ....protocol.messages.guidance import CfgOverride
from .after import after_of
from .before import AdaptiveProjection, before_of
from .combine import combine_of
from .moment import After, Before, Combine, Moment


@dataclass(frozen=True, eq=False)
class Changes:
    """Scales that hold for a while, changes before the combination, the combination, and changes after it.

    Without a `combine` of its own the combination is plain guidance.
    """

    overrides: tuple[CfgOverride, ...] = ()
    before: tuple[Before, ...] = ()
    combine: Combine | None = None
    after: tuple[After, ...] = ()

    @property
    def none(self) -> bool:
        """Whether predictions are combined plainly."""
        return not self.before and self.combine is None and not self.after

    @property
    def projections(self) -> list[AdaptiveProjection]:
        """Those that remember something from step to step."""
        kept = [change for change in self.before if isinstance(change, AdaptiveProjection)]
        return [change for change in kept if change.remembers]

    def scale(self, sigma: Tensor, scale: float) -> float:
        """Return the guidance scale at `sigma`, a scalar, where it is `scale` without overrides."""
        level = float(sigma)
        held = [change.scale for change in self.overrides if change.end <= level <= change.start]
        return held[-1] if held else scale

    def prepared(self, moment: Moment) -> Moment:
        """Return the moment with all changes before the combination."""
        for change in self.before:
            moment = change(moment)
        return moment

    def combined(self, moment: Moment) -> Tensor:
        """Return the combined x0 with all changes after it."""
        return self.finished(moment, self.combine(moment) if self.combine else moment.guided)

    def finished(self, moment: Moment, x0: Tensor) -> Tensor:
        """Return `x0` with all changes after the combination."""
        for change in self.after:
            x0 = change(moment, x0)
        return x0


def changes_of(
    records: Sequence[Record], combine: Callable[[Record], Combine | None] = combine_of
) -> Changes:
    """Return the changes that `records` describe; `combine` finds the one that replaces plain guidance.

    Raises InvalidRequestError when there are two such.
    """
    combinations = [found for record in records if (found := combine(record)) is not None]
    if len(combinations) > 1:
        raise InvalidRequestError(
            f"{len(combinations)} changes would combine the predictions, each in its own way; only one can.",
            hint="Send at most one change in place of plain guidance.",
        )
    return Changes(
        overrides=tuple(record for record in records if isinstance(record, CfgOverride)),
        before=tuple(before for record in records if (before := before_of(record)) is not None),
        combine=combinations[0] if combinations else None,
        after=tuple(after for record in records if (after := after_of(record)) is not None),
    )
