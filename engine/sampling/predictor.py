"""From conditionings to predictions: plans the forwards, makes them, and averages what they say."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence

import torch
from torch import Tensor

from ...protocol.errors import OutOfMemoryError
from .branch import Side
from .call import Call, Forward, step_at
from .plan import Part, Plan, Planned, make_plan

Key = tuple[tuple[str, ...] | None, ...]


def _nothing() -> None:
    """What there is to do after a failed forward where memory needs no help."""


class Predictor:
    """Predicts x0 for each of some sides; the forwards of one set of conditionings are planned once.

    forward: the network. It may raise `OutOfMemoryError`: a call of several conditionings is then made again
    as one call for each, as all later ones are, after `release` gave back what the failed one had taken.
    schedule: the run's sigmas, to say which step is under way. ragged: see `make_plan`.
    `forwards` counts the calls that succeeded, `splits` those that memory did not suffice for.
    """

    def __init__(
        self,
        forward: Forward,
        *,
        schedule: Sequence[float] = (),
        ragged: Collection[str] = frozenset(),
        batched: bool = True,
        release: Callable[[], None] = _nothing,
    ) -> None:
        self._forward = forward
        self._schedule = tuple(schedule)
        self._ragged = ragged
        self._batched = batched
        self._release = release
        self._plans: dict[Key, Plan] = {}
        self.forwards = 0
        self.splits = 0

    def __call__(self, x: Tensor, sigma: Tensor, sides: Sequence[Side | None]) -> list[Tensor | None]:
        """Return x0 [B, C, ...] for each side at `sigma`, a scalar; None for a side that is None.

        Where no conditioning of a side counts, its x0 is 0.
        """
        plan = self._plan(x, sigma, sides)
        totals: dict[int, Tensor] = {}
        for call in plan.calls:
            for part, x0 in self._made(call, x, sigma):
                if plan.sums[part.side] is None:
                    totals[part.side] = x0
                else:
                    total = totals.setdefault(part.side, torch.zeros_like(x))
                    part.branch.of(total).add_(x0 * part.weight)
        return [
            None if side is None else _average(totals.get(number), plan.sums[number], x)
            for number, side in enumerate(sides)
        ]

    def _plan(self, x: Tensor, sigma: Tensor, sides: Sequence[Side | None]) -> Plan:
        key: Key = tuple(
            None if side is None else tuple(branch.id for branch in side if branch.active(sigma))
            for side in sides
        )
        if key not in self._plans:
            self._plans[key] = make_plan(sides, x, sigma, batched=self._batched, ragged=self._ragged)
        return self._plans[key]

    def _made(self, planned: Planned, x: Tensor, sigma: Tensor) -> Iterator[tuple[Part, Tensor]]:
        try:
            outputs = self._outputs(planned, x, sigma)
        except OutOfMemoryError:
            if len(planned.parts) == 1:
                raise
            outputs = ()
        if outputs:
            yield from zip(planned.parts, outputs, strict=True)
            return
        # Out of the handler: the error, and with it all that the failed forward held, is gone by now.
        self._split()
        for alone in planned.split():
            yield from zip(alone.parts, self._outputs(alone, x, sigma), strict=True)

    def _split(self) -> None:
        self.splits += 1
        self._batched = False
        self._plans.clear()
        self._release()

    def _outputs(self, planned: Planned, x: Tensor, sigma: Tensor) -> tuple[Tensor, ...]:
        seen = [part.branch.of(x) for part in planned.parts]
        whole = x if len(seen) == 1 and seen[0] is x else torch.cat(seen)
        level = float(sigma)
        ids = tuple(part.branch.id for part in planned.parts)
        call = Call(ids, len(x), step_at(self._schedule, level), level)
        x0 = self._forward(whole, whole.new_full((len(whole),), level), planned.conditioning, call)
        self.forwards += 1
        return x0.chunk(len(seen))


def _average(total: Tensor | None, weights: Tensor | None, x: Tensor) -> Tensor:
    if total is None:
        return torch.zeros_like(x)
    return total if weights is None else total / weights
