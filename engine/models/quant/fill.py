"""Quantised weights from the file: as values, some rows at a time, or as they are stored."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from ..plan import Read
from ..reader import Reader
from .kitchen import FP8
from .layer import Layer
from .linear import SMOOTHING, QuantLinear
from .placement import Kept
from .unpack import unpack

VALUES = 1 << 20
"""Values unpacked at a time; a few copies of so many are in memory besides the model."""


class LayerReader:
    """Reads quantised layers; the scales of the last one stay at hand, since its weight comes in pieces."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._key = ""
        self._parts: dict[str, torch.Tensor] = {}

    def fill(self, rows: torch.Tensor, read: Read) -> None:
        """Fill `rows`, those of `read`, with values in their dtype."""
        layer = read.layer
        assert layer is not None
        step = max(1, VALUES // max(1, rows[:1].numel()) // layer.align) * layer.align
        stop = read.first + read.rows
        for begin in range(read.first // layer.align * layer.align, stop, step):
            first, end = max(begin, read.first), min(begin + step, stop)
            packed, parts = self.stored(layer, begin, end)
            values = unpack(layer.format, layer.options, packed, parts, rows.dtype)[first - begin :]
            place = rows[first - read.first : end - read.first]
            place.copy_(values[:, : place[:1].numel()].reshape(place.shape))
            self._reader.advance((end - first) * layer.row_bytes)

    def stored(self, layer: Layer, first: int, stop: int) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """Rows [first, stop) as stored, with the parts that belong to them."""
        packed = self._reader.tensor(layer.weight, (first, stop))
        if layer.format in FP8:
            packed = packed.to(FP8[layer.format])
        parts: dict[str, torch.Tensor] = {}
        for name, part in self._all_parts(layer).items():
            rows = layer.part_rows(name, first, stop)
            parts[name] = part if rows is None else part[slice(*rows)]
        return packed, parts

    def linear(self, kept: Kept, linear: nn.Linear, dtype: torch.dtype) -> QuantLinear:
        """The layer that takes the place of `linear`, with its weight as stored."""
        layer = kept.layer
        pieces = [self.stored(layer, read.first, stop_of(layer, read)) for read in kept.reads]
        packed, parts = joined(layer, pieces)
        for read in kept.reads:
            self._reader.advance(read.rows * layer.row_bytes)
        return QuantLinear(
            linear, layer.format, layer.options, packed, parts, native=kept.native, dtype=dtype
        )

    def smoothing(self, layer: Layer) -> torch.Tensor:
        """The scale of the layer's input, per column."""
        return self._all_parts(layer)[SMOOTHING]

    def _all_parts(self, layer: Layer) -> dict[str, torch.Tensor]:
        if self._key != layer.key:
            self._parts = {name: self._reader.tensor(info) for name, info in layer.parts.items()}
            self._parts = {name: _shaped(layer, name, part) for name, part in self._parts.items()}
            self._key = layer.key
        return self._parts


Stored = tuple[torch.Tensor, dict[str, torch.Tensor]]


def stop_of(layer: Layer, read: Read) -> int:
    """The end of the stored rows that `read` needs: padding belongs to the last ones."""
    stop = read.first + read.rows
    return layer.shape[0] if stop > layer.shape[0] - layer.tile else stop


def cut(layer: Layer, stored: Stored, read: Read) -> Stored:
    """What `read` needs of a whole weight as it is stored."""
    first, stop = read.first, stop_of(layer, read)
    parts: dict[str, torch.Tensor] = {}
    for name, part in stored[1].items():
        rows = layer.part_rows(name, first, stop)
        parts[name] = part if rows is None else part[slice(*rows)]
    return stored[0][first:stop], parts


def joined(layer: Layer, pieces: Sequence[Stored]) -> Stored:
    """Pieces of a weight, one below the other, with memory of their own where they are more than one."""
    packed = pieces[0][0]
    if len(pieces) > 1:
        packed = torch.cat([_bytes(piece) for piece, _ in pieces]).view(packed.dtype)
    parts: dict[str, torch.Tensor] = {}
    for name, part in pieces[0][1].items():
        per_row = len(pieces) > 1 and layer.part_rows(name, 0, 1) is not None
        whole = torch.cat([_bytes(piece[name]) for _, piece in pieces]) if per_row else _bytes(part.clone())
        parts[name] = whole.view(part.dtype)
    return packed, parts


def _shaped(layer: Layer, name: str, part: torch.Tensor) -> torch.Tensor:
    return part.reshape(layer.parts[name].shape)


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor if tensor.element_size() > 1 else tensor.view(torch.uint8)
