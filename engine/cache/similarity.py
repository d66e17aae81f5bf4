"""How much a step differs from the last computed one: relative L1, for each row by itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

#: Adds up a tensor over the ranks that share the tokens of one forward, in place or not, and returns the sum.
Reduce = Callable[[Tensor], Tensor]


def differences(
    previous: Sequence[Tensor], current: Sequence[Tensor], reduce: Reduce | None = None
) -> list[float]:
    """Of each pair of rows, the sum of |current - previous| over the sum of |previous|, in fp32.

    The host waits for the device once, whatever the number of rows.
    """
    sums = torch.stack(
        [
            torch.stack([(old - new).abs().sum(dtype=torch.float32), old.abs().sum(dtype=torch.float32)])
            for old, new in zip(previous, current, strict=True)
        ]
    )
    if reduce is not None:
        sums = reduce(sums)
    ratios: list[float] = (sums[:, 0] / sums[:, 1]).tolist()
    return ratios
