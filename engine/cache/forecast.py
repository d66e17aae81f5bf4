"""TaylorSeer on true step numbers: the polynomial through the last computed steps, read further on.

Divided differences take the steps where they were (arXiv:2503.06923 takes them as evenly spaced).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Snapshot:
    """What the skipped blocks added at one computed step, for image and text; None: no such tokens left."""

    position: float
    image: Tensor
    text: Tensor | None

    @property
    def nbytes(self) -> int:
        return sum(part.numel() * part.element_size() for part in (self.image, self.text) if part is not None)


def remember(history: Sequence[Snapshot], new: Snapshot, order: int) -> tuple[Snapshot, ...]:
    """The newest `order` + 1 snapshots; one at the same position is replaced, not joined."""
    older = [snapshot for snapshot in history if snapshot.position != new.position]
    return (*older, new)[-(order + 1) :]


def weights(positions: Sequence[float], at: float) -> list[float]:
    """Of each value at `positions`, its weight in the value that the polynomial through them has `at`."""
    result = []
    for own in positions:
        weight = 1.0
        for other in positions:
            if other != own:
                weight *= (at - other) / (own - other)
        result.append(weight)
    return result


def predict(values: Sequence[Tensor], positions: Sequence[float], at: float) -> Tensor:
    """The value `at`, in the dtype of `values`, summed in fp32 when there is more than one."""
    if len(values) == 1:
        return values[0]
    if len(values) == 2:
        share = (at - positions[0]) / (positions[1] - positions[0])
        return torch.lerp(values[0].float(), values[1].float(), share).to(values[1].dtype)
    result = torch.zeros_like(values[-1], dtype=torch.float32)
    for value, weight in zip(values, weights(positions, at), strict=True):
        result.add_(value, alpha=weight)
    return result.to(values[-1].dtype)
