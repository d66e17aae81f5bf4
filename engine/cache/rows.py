"""Some rows of a batch: taken out of what a block is called with, and put back into what it gives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ...protocol.errors import InternalError


def take(value: Any, rows: Sequence[int], batch: int, dim: int = 0) -> Any:
    """`rows` of every tensor in `value`, which has `batch` of them (or k times as many, or 1) along `dim`."""
    if isinstance(value, Tensor):
        return _taken(value, rows, batch, dim) if value.ndim > dim else value
    if isinstance(value, Mapping):
        return {key: take(item, rows, batch, dim) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return type(value)(take(item, rows, batch, dim) for item in value)
    return value


def put(whole: Tensor, part: Tensor, rows: Sequence[int], dim: int = 0) -> Tensor:
    """A copy of `whole` with `part` as its `rows`."""
    if _adjacent(rows):
        before = whole.narrow(dim, 0, rows[0])
        after = whole.narrow(dim, rows[-1] + 1, whole.shape[dim] - rows[-1] - 1)
        return torch.cat([before, part, after], dim)
    return whole.index_copy(dim, _index(rows, whole.device), part)


def row(value: Tensor, number: int, dim: int = 0) -> Tensor:
    """One row, with its dimension kept; a view."""
    return value.narrow(dim, number, 1)


def _taken(tensor: Tensor, rows: Sequence[int], batch: int, dim: int) -> Tensor:
    size = tensor.shape[dim]
    if size == 1:
        return tensor
    if size % batch:
        raise InternalError(f"A tensor of {size} entries does not belong to a batch of {batch} rows.")
    if size == batch and _adjacent(rows):
        return tensor.narrow(dim, rows[0], len(rows))
    picked = [start + number for start in range(0, size, batch) for number in rows]
    return tensor.index_select(dim, _index(picked, tensor.device))


def _adjacent(rows: Sequence[int]) -> bool:
    """Whether a view will do: an index would have to be sent to the device, which waits for it."""
    return rows[-1] - rows[0] == len(rows) - 1


def _index(rows: Sequence[int], device: torch.device) -> Tensor:
    return torch.tensor(rows, device=device)
