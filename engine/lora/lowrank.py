"""Low-rank products added to rows of a weight, a tile at a time, while the tile is in the processor's cache."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from .change import check_reshape, misfit, scale_of
from .patch import Patch

TILE = 128 << 10
"""Values of a tile on a CPU: with its copy in fp32 it fits the second level of a core's cache."""
DEVICE_TILE = 16 << 20
"""Values of a tile on a GPU, which has no such cache to keep to."""


@dataclass(frozen=True)
class Product:
    """scale * up (m,r) @ down (r,n), in fp32, to be added to the rows from `first` of some rows."""

    first: int
    up: torch.Tensor
    down: torch.Tensor
    scale: float


def is_low_rank(patch: Patch) -> bool:
    """Whether the patch only adds a product of two matrices, whatever the weight holds."""
    rows = patch.offset is None or patch.offset[0] == 0
    plain = not patch.tensors.keys() & {"mid", "dora_scale"}
    return patch.kind == "lora" and plain and rows and patch.strength_model == 1.0


def products(
    patches: Sequence[Patch], shape: tuple[int, ...], first: int, rows: int, device: torch.device
) -> list[Product]:
    """What the `patches` of a weight of `shape` add to its rows [first, first + rows).

    Raises InvalidRequestError when a patch does not fit the weight.
    """
    found = []
    for patch in patches:
        _, start, length = patch.offset or (0, 0, shape[0])
        stand_in = torch.empty((length, *shape[1:]), device="meta")
        check_reshape(patch, stand_in)
        up, down = patch.tensors["up"].flatten(1), patch.tensors["down"].flatten(1)
        fits = up.shape == (length, down.shape[0]) and down.shape[1] == stand_in[0].numel()
        if not fits or start + length > shape[0]:
            raise misfit(patch, stand_in)
        begin, stop = max(first, start), min(first + rows, start + length)
        if begin < stop:
            own = up[begin - start : stop - start].to(device, torch.float32)
            scale = patch.strength * scale_of(patch, stand_in)
            found.append(Product(begin - first, own, down.to(device, torch.float32), scale))
    return found


def add_products(target: torch.Tensor, base: torch.Tensor, found: Sequence[Product]) -> None:
    """Fill `target` (m,n; any float dtype) with `base` (the same, on the host) and the products, in fp32."""
    if target.device.type != "cpu":
        target.copy_(base)
        base = target
    tile = max(1, (TILE if target.device.type == "cpu" else DEVICE_TILE) // max(1, target.shape[1]))
    if target.dtype == torch.float32:
        for begin in range(0, len(target), tile):
            piece = target[begin : begin + tile]
            piece.copy_(base[begin : begin + tile])
            _add(piece, begin, found)
        return
    scratch = torch.empty((min(tile, len(target)), target.shape[1]), device=target.device)
    for begin in range(0, len(target), tile):
        piece = target[begin : begin + tile]
        values = scratch[: len(piece)]
        values.copy_(base[begin : begin + tile])
        _add(values, begin, found)
        piece.copy_(values)


def _add(values: torch.Tensor, begin: int, found: Sequence[Product]) -> None:
    """Add what concerns the rows of `values`, which are those from `begin`."""
    for product, up, rows in _cut(begin, begin + len(values), found):
        values[rows].addmm_(up, product.down, alpha=product.scale)


def _cut(begin: int, stop: int, found: Sequence[Product]) -> Iterator[tuple[Product, torch.Tensor, slice]]:
    for product in found:
        first, last = max(begin, product.first), min(stop, product.first + len(product.up))
        if first < last:
            up = product.up[first - product.first : last - product.first]
            yield product, up, slice(first - begin, last - begin)
