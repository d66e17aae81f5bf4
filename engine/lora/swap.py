"""A patch made for a layer whose two halves of rows stand the other way round in the file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch

from ...protocol.errors import UnsupportedRequestError
from .patch import Patch


def swapped_halves(patch: Patch) -> Patch:
    """The patch whose change is that of `patch` with its upper and lower half of rows exchanged.

    Raises UnsupportedRequestError for kinds whose rows cannot be moved within their factors.
    """
    if patch.kind == "set":
        return patch
    axes = _row_axes(patch)
    if not axes or any(patch.tensors[name].shape[axis] % 2 for name, axis in axes.items()):
        raise UnsupportedRequestError(
            f"Weight {patch.key!r}: a patch of kind {patch.kind!r} cannot be turned to this layer's layout.",
            hint="Leave this layer out of the LoRA.",
        )
    moved = {name: _turned(patch.tensors[name], axis) for name, axis in axes.items()}
    return replace(patch, tensors={**patch.tensors, **moved})


def _row_axes(patch: Patch) -> Mapping[str, int]:
    """The factors that make the rows of the change, and their axis that does."""
    tensors = patch.tensors
    if patch.kind == "lora":
        return {"up": 0}
    if patch.kind == "diff":
        return {"diff": 0}
    if patch.kind == "loha":
        axis = 1 if "t1" in tensors else 0
        return {"w1_a": axis, "w2_a": axis}
    if patch.kind == "lokr":
        return {"w1" if "w1" in tensors else "w1_a": 0}
    return {}


def _turned(tensor: torch.Tensor, axis: int) -> torch.Tensor:
    return tensor.roll(tensor.shape[axis] // 2, axis)
