"""Which forwards a step takes: the conditionings that take part, gathered into calls as ComfyUI does."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import partial, reduce

import torch
from torch import Tensor

from .branch import Branch, Side
from .conditioning import Conditioning, join, joinable

TINY = 1e-37
"""What a place that no conditioning counts at is divided by."""


@dataclass(frozen=True, eq=False)
class Part:
    """One conditioning in a call: the number of its side, and how much it counts where."""

    side: int
    branch: Branch
    weight: Tensor | float

    @property
    def everywhere_alike(self) -> bool:
        return isinstance(self.weight, float) and self.weight != 0


@dataclass(frozen=True, eq=False)
class Planned:
    """One forward: the parts whose rows it carries, in order, and their joined conditioning."""

    parts: tuple[Part, ...]
    conditioning: Conditioning

    def split(self) -> tuple[Planned, ...]:
        """The same as one forward for each part."""
        return tuple(Planned((part,), part.branch.conditioning) for part in self.parts)


@dataclass(frozen=True, eq=False)
class Plan:
    """The forwards of a step, and for each side the sum of its weights, [B, 1, ...].

    None instead of a sum: one conditioning alone, everywhere alike, is the side's prediction as it is.
    """

    calls: tuple[Planned, ...]
    sums: tuple[Tensor | None, ...]


def make_plan(
    sides: Sequence[Side | None],
    x: Tensor,
    sigma: Tensor,
    *,
    batched: bool = True,
    ragged: Collection[str] = frozenset(),
) -> Plan:
    """Plan the forwards at `sigma` (a scalar) for a latent like `x` [B, C, ...]; a None side is left out.

    All that fit the first one share its call, the last first; without `batched` the last of them goes alone.
    They fit when they see latents of one shape and their conditionings can be joined, where tensors named in
    `ragged` may differ in length.
    """
    waiting = _active(sides, x, sigma)
    sums = tuple(_sum([part for part in waiting if part.side == side], x) for side in range(len(sides)))
    calls: list[Planned] = []
    while waiting:
        fitting = [index for index, part in enumerate(waiting) if _fit(part, waiting[0], x, ragged)]
        chosen = fitting[::-1] if batched else fitting[-1:]
        parts = tuple(waiting[index] for index in chosen)
        joined = reduce(partial(join, ragged=ragged), [part.branch.conditioning for part in parts])
        calls.append(Planned(parts, joined))
        waiting = [part for index, part in enumerate(waiting) if index not in chosen]
    return Plan(tuple(calls), sums)


def _active(sides: Sequence[Side | None], x: Tensor, sigma: Tensor) -> list[Part]:
    given = [(number, branch) for number, side in enumerate(sides) for branch in side or ()]
    active = [(number, branch) for number, branch in given if branch.active(sigma)]
    parts = [Part(number, branch, branch.weight(x)) for number, branch in active if not branch.fallback]
    rest: list[Part] = []
    for number in range(len(sides)):
        fallbacks = [branch for side, branch in active if side == number and branch.fallback]
        if fallbacks:
            room = _room([part for part in parts if part.side == number], x)
            rest += [Part(number, branch, room) for branch in fallbacks if bool(room.any())]
    return parts + rest


def _room(parts: Sequence[Part], x: Tensor) -> Tensor:
    """What the parts of a side leave of a weight of 1 at each place, [B, 1, ...]."""
    room = _blank(x, 1.0)
    for part in parts:
        part.branch.of(room).sub_(part.weight)
    return room.relu_()


def _sum(parts: Sequence[Part], x: Tensor) -> Tensor | None:
    if len(parts) == 1 and parts[0].everywhere_alike:
        return None
    total = _blank(x, TINY)
    for part in parts:
        part.branch.of(total).add_(part.weight)
    return total


def _blank(x: Tensor, value: float) -> Tensor:
    return torch.full((x.shape[0], 1, *x.shape[2:]), value, dtype=x.dtype, device=x.device)


def _fit(part: Part, first: Part, x: Tensor, ragged: Collection[str]) -> bool:
    if part is first:
        return True
    alike = part.branch.of(x).shape == first.branch.of(x).shape
    return alike and joinable(part.branch.conditioning, first.branch.conditioning, ragged)
