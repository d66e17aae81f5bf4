"""Conditionings as batches of rows: repeat one to a batch, tell whether two fit one call, join them."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch import Tensor

Conditioning = Mapping[str, Any]
"""Name -> tensor [B, ...], scalar, string, None, or a list or mapping of these."""


def repeat_rows(value: Any, rows: int) -> Any:
    """Return `value` with every tensor in it repeated, or cut, to `rows` rows; anything else is kept."""
    if isinstance(value, Tensor):
        return _repeated(value, rows)
    if isinstance(value, Mapping):
        return {key: repeat_rows(item, rows) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [repeat_rows(item, rows) for item in value]
    return value


def cut_rows(value: Any, own: slice, rows: int) -> Any:
    """Return `value` with `own` of every tensor in it that has `rows` rows; anything else is kept."""
    if isinstance(value, Tensor):
        return value[own] if value.ndim and value.shape[0] == rows else value
    if isinstance(value, Mapping):
        return {key: cut_rows(item, own, rows) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [cut_rows(item, own, rows) for item in value]
    return value


def joinable(first: Any, second: Any, ragged: Collection[str] = frozenset()) -> bool:
    """Whether two conditionings can share a call: same names, same shapes, equal values elsewhere.

    What is named in `ragged` may differ: tensors in their second length, other values altogether.
    """
    if isinstance(first, Tensor) and isinstance(second, Tensor):
        same_shape = first.shape == second.shape
        return same_shape if first.ndim else same_shape and torch.equal(first, second)
    if isinstance(first, Mapping) and isinstance(second, Mapping):
        return first.keys() == second.keys() and all(
            _ragged(first[key], second[key]) if key in ragged else joinable(first[key], second[key])
            for key in first
        )
    if isinstance(first, (list, tuple)) and isinstance(second, (list, tuple)):
        return len(first) == len(second) and all(map(joinable, first, second))
    return type(first) is type(second) and bool(first == second)


def join(first: Any, second: Any, ragged: Collection[str] = frozenset()) -> Any:
    """Return the rows of `first` followed by those of `second`, which must be joinable.

    Tensors of two lengths, and values that differ, become a list, one entry [L, ...] for each row.
    """
    if isinstance(first, Tensor):
        return torch.cat([first, second]) if first.ndim else first
    if isinstance(first, Mapping):
        return {
            key: _rows(first[key]) + _rows(second[key])
            if key in ragged and not _alike(first[key], second[key])
            else join(first[key], second[key])
            for key in first
        }
    if isinstance(first, (list, tuple)):
        return list(map(join, first, second))
    return first


def _ragged(first: Any, second: Any) -> bool:
    if isinstance(first, Tensor) and isinstance(second, Tensor):
        return first.ndim > 1 and first.shape[2:] == second.shape[2:]
    return type(first) is type(second)


def _alike(first: Any, second: Any) -> bool:
    """Whether they join as they are; a list is one that was made of other rows before."""
    return not isinstance(first, list) and joinable(first, second)


def _rows(value: Any) -> list[Any]:
    if isinstance(value, Tensor):
        return list(value)
    return value if isinstance(value, list) else [value]


def _repeated(tensor: Tensor, rows: int) -> Tensor:
    if tensor.ndim == 0 or tensor.shape[0] in (0, rows):
        return tensor
    times = math.ceil(rows / tensor.shape[0])
    return tensor.repeat(times, *[1] * (tensor.ndim - 1))[:rows]
