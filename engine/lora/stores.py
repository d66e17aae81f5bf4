"""One weight of the file in the module's memory: changed in place, and put back as it was."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, cast

import torch
from torch import nn

from ..models.model import Model
from ..models.plan import Read
from ..models.quant.linear import QuantLinear
from .change import change
from .layout import FileWeight
from .lowrank import add_products, is_low_rank, products
from .patch import Patch


class Store(Protocol):
    """Where a weight is kept."""

    def write(self, patches: Sequence[Patch]) -> int:
        """Make the weight its base with `patches`, in order; returns the bytes written. May raise half way."""

    def restore(self) -> int:
        """Make the weight its base, to the bit, and forget what was kept for it; returns the bytes written."""


def rows_of(module: nn.Module, read: Read) -> torch.Tensor:
    """The rows of the parameter that `read` fills, sharing its memory."""
    owner, _, name = read.target.rpartition(".")
    tensor = cast(torch.Tensor, getattr(module.get_submodule(owner), name)).detach()
    return tensor[read.target_first :][: read.rows] if tensor.ndim else tensor


def kept_layer(module: nn.Module, read: Read) -> QuantLinear | None:
    """The layer that keeps the weight `read` fills in few bits, if one does."""
    owner, _, name = read.target.rpartition(".")
    part = module.get_submodule(owner)
    return part if name == "weight" and isinstance(part, QuantLinear) else None


class PlainStore:
    """A weight whose parameters hold values in a float dtype; the host keeps the base of what is changed."""

    def __init__(self, model: Model, weight: FileWeight) -> None:
        self._module, self._weight = model.module, weight
        self._bases: list[torch.Tensor] = []

    def write(self, patches: Sequence[Patch]) -> int:
        targets = self._targets()
        if not self._bases:
            self._bases = [target.to("cpu", copy=True) for target in targets]
        if self._weight.shape[1:] and all(map(is_low_rank, patches)):
            self._add(targets, patches)
        else:
            self._change(targets, patches)
        return _nbytes(targets)

    def restore(self) -> int:
        targets = self._targets()
        for target, base in zip(targets, self._bases, strict=bool(self._bases)):
            target.copy_(base)
        self._bases = []
        return _nbytes(targets)

    def _targets(self) -> list[torch.Tensor]:
        return [rows_of(self._module, read) for read in self._weight.reads]

    def _add(self, targets: Sequence[torch.Tensor], patches: Sequence[Patch]) -> None:
        for read, target, base in zip(self._weight.reads, targets, self._bases, strict=True):
            found = products(patches, self._weight.shape, read.first, read.rows, target.device)
            add_products(target.flatten(1), base.flatten(1), found)

    def _change(self, targets: Sequence[torch.Tensor], patches: Sequence[Patch]) -> None:
        whole = torch.empty(self._weight.shape, device=targets[0].device)
        parts = [part_of(whole, read) for read in self._weight.reads]
        for part, base in zip(parts, self._bases, strict=True):
            part.copy_(base)
        for patch in patches:
            change(whole, patch)
        for target, part in zip(targets, parts, strict=True):
            target.copy_(part)


def part_of(whole: torch.Tensor, read: Read) -> torch.Tensor:
    """The rows of a weight in the file's layout that `read` reads."""
    return whole[read.first :][: read.rows] if whole.ndim else whole


def _nbytes(tensors: Sequence[torch.Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def store_of(model: Model, weight: FileWeight) -> Store:
    """The store of `weight`, by the form it has in memory."""
    from .atuse import AtUseStore
    from .requantised import RequantisedStore

    read = weight.reads[0]
    # Blocks, and plain fp8 that was not asked for: ComfyUI changes their values, and rounds no result.
    if read.layer is not None and read.through is None and not read.layer.parts:
        kept = kept_layer(model.module, read) is not None
        return AtUseStore(model, weight) if kept else PlainStore(model, weight)
    if read.layer is not None or read.through is not None:
        return RequantisedStore(model, weight)
    return PlainStore(model, weight)
