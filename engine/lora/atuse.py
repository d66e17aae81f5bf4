"""A GGUF weight that stays in its blocks: unpacked at each use, and changed then."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch

from ...protocol.errors import InternalError
from ..models.model import Model
from ..models.plan import Read
from ..models.quant.linear import QuantLinear
from .change import change_all
from .layout import FileWeight
from .lowrank import Product, is_low_rank, products
from .patch import Patch
from .places import kept_layer, part_of

Changes = dict[QuantLinear, list[Callable[[torch.Tensor], None]]]


class AtUseStore:
    """Nothing of the weight is rewritten; its layers are told what to do to their values."""

    def __init__(self, model: Model, weight: FileWeight) -> None:
        self._weight, self._module, self._device = weight, model.module, model.device

    def write(self, patches: Sequence[Patch]) -> int:
        changes: Changes = {}
        low_rank = all(map(is_low_rank, patches))
        if not low_rank:
            # A patch that does not fit is refused now, not at the first use.
            change_all(self._whole(), patches)
        for read in self._weight.reads:
            todo = self._add(read, patches) if low_rank else partial(self._copy, read, tuple(patches))
            changes.setdefault(self._layer(read), []).append(todo)
        for layer, todos in changes.items():
            layer.change = partial(_all, tuple(todos))
        return 0

    def restore(self) -> int:
        for read in self._weight.reads:
            self._layer(read).change = None
        return 0

    def _layer(self, read: Read) -> QuantLinear:
        layer = kept_layer(self._module, read)
        if layer is None:
            raise InternalError(f"Weight {self._weight.key!r} is kept in blocks in one of its parts only.")
        return layer

    def _add(self, read: Read, patches: Sequence[Patch]) -> Callable[[torch.Tensor], None]:
        found = products(patches, self._weight.shape, read.first, read.rows, self._device)
        return partial(_add_products, read, tuple(found))

    def _copy(self, read: Read, patches: Sequence[Patch], values: torch.Tensor) -> None:
        whole = self._whole()
        change_all(whole, patches)
        values[read.target_first :][: read.rows].copy_(part_of(whole, read))

    def _whole(self) -> torch.Tensor:
        whole = torch.empty(self._weight.shape, device=self._device)
        for read in self._weight.reads:
            stored = self._layer(read).stored(torch.float32)
            part_of(whole, read).copy_(stored[read.target_first :][: read.rows])
        return whole


def _all(todos: Sequence[Callable[[torch.Tensor], None]], values: torch.Tensor) -> None:
    for todo in todos:
        todo(values)


def _add_products(read: Read, found: Sequence[Product], values: torch.Tensor) -> None:
    rows = values[read.target_first :][: read.rows]
    for product in found:
        rows[product.first :][: len(product.up)].addmm_(product.up, product.down, alpha=product.scale)
