"""A weight that memory has in a float dtype: changed in place, its base kept on the host meanwhile."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..models.model import Model
from .change import change_all
from .layout import FileWeight
from .lowrank import add_products, is_low_rank, products
from .patch import Patch
from .places import part_of, rows_of


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
        change_all(whole, patches)
        for target, part in zip(targets, parts, strict=True):
            target.copy_(part)


def _nbytes(tensors: Sequence[torch.Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
