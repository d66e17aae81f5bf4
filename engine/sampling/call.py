"""What one forward of the network carries: whose rows, and at which point of the run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

from .conditioning import Conditioning


@dataclass(frozen=True)
class Call:
    """`rows` rows of each of `branches` (ids, each its own in the run), in this order.

    So row r of branch b is row b * rows + r of the forward. `step` is the step of the run under way (see
    `step_at`), which a sampler may ask about several times; `sigma` is the noise level of all rows.
    """

    branches: tuple[str, ...]
    rows: int
    step: int
    sigma: float

    @property
    def keys(self) -> list[tuple[str, int]]:
        """Branch and row of each row of the forward, in its order."""
        return [(branch, row) for branch in self.branches for row in range(self.rows)]


Forward = Callable[[Tensor, Tensor, Conditioning, Call], Tensor]
"""`forward(x[N, C, ...], sigma[N], conditioning, call) -> x0[N, C, ...]`: one call of the network."""


def step_at(schedule: Sequence[float], sigma: float) -> int:
    """Return the step under way at `sigma`: the last of the falling `schedule` that begins at or above it."""
    return max(sum(level >= sigma for level in schedule) - 1, 0)
