"""One conditioning of a run: when it takes part, where in the latent, and how much it counts there."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from .conditioning import Conditioning

FEATHER = 8
"""Rows and columns over which the weight of an area rises from its edge."""


@dataclass(frozen=True)
class Area:
    """A box of the latent: a size and an offset for each dimension after the channels."""

    size: tuple[int, ...]
    offset: tuple[int, ...]

    def of(self, x: Tensor) -> Tensor:
        """Return the box of `x` [B, C, ...] as a view."""
        for dim, (size, offset) in enumerate(zip(self.size, self.offset, strict=True), start=2):
            x = x.narrow(dim, offset, size)
        return x


@dataclass(frozen=True, eq=False)
class Branch:
    """A conditioning, repeated to the rows of the latent and cut to `area`.

    `mask` [1 or B, 1, ...] says how much it counts at each place of the whole latent. It takes part from
    sigma `start` down to `end`; a `fallback` only counts where the others of its side leave room.
    """

    id: str
    conditioning: Conditioning
    strength: float = 1.0
    area: Area | None = None
    mask: Tensor | None = None
    start: float | None = None
    end: float | None = None
    fallback: bool = False

    def active(self, sigma: Tensor) -> bool:
        """Whether it takes part at `sigma`, a scalar; compared in float32, as ComfyUI does."""
        late = self.start is not None and bool(sigma > self.start)
        return not late and not (self.end is not None and bool(sigma < self.end))

    def of(self, x: Tensor) -> Tensor:
        """Return what it sees of `x` [B, C, ...], as a view."""
        return x if self.area is None else self.area.of(x)

    def weight(self, x: Tensor) -> Tensor | float:
        """Return how much it counts, one number or [1 or B, 1, ...] over its area of `x` [B, C, ...].

        An area without a mask is feathered at each edge that is not the latent's own.
        """
        if self.mask is not None:
            return self.of(self.mask) * self.strength
        if self.area is None:
            return self.strength
        return _feathered(self.area, x) * self.strength


Side = tuple[Branch, ...]
"""The conditionings that are averaged into one prediction."""


def fits_rows(mask: Tensor, rows: int) -> Tensor:
    """Return `mask` [R, 1, ...] for `rows` rows, taken in turn; a single row stays one."""
    mask = mask[:rows]
    if len(mask) in (1, rows):
        return mask
    return torch.cat([mask] * math.ceil(rows / len(mask)))[:rows]


def _feathered(area: Area, x: Tensor) -> Tensor:
    weight = area.of(x.new_ones(1, 1, *x.shape[2:])).clone()
    for dim, (size, offset) in enumerate(zip(area.size, area.offset, strict=True), start=2):
        width = min(FEATHER, size // 4)
        rise = [(1.0 / width) * (place + 1) for place in range(width)]
        for place, factor in enumerate(rise):
            if offset:
                weight.narrow(dim, place, 1).mul_(factor)
            if offset + size < x.shape[dim]:
                weight.narrow(dim, size - 1 - place, 1).mul_(factor)
    return weight
