"""One quantised weight of a file: where its tensors lie, and which bytes make up some of its rows."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from ..header import TensorInfo
from .formats import FORMATS, round_up


@dataclass(frozen=True)
class Options:
    """What a layer's description says beyond its format.

    full_precision    multiply in the compute dtype even where the device could do it in few bits
    rotation          columns rotated together by a Hadamard matrix, 0 for none
    product           integers that convrot_w4a4 multiplies in, "int4" or "int8"
    fast              multiply in fp8 though the weight has no scale (weight_dtype fp8_e4m3fn_fast)
    """

    full_precision: bool = False
    rotation: int = 0
    product: str = "int4"
    fast: bool = False


@dataclass(frozen=True)
class Layer:
    """A weight in fewer bits. `shape` is that of its values, padding included; `key` its name in the file."""

    key: str
    format: str
    weight: TensorInfo
    shape: tuple[int, ...]
    parts: Mapping[str, TensorInfo] = field(default_factory=dict)
    options: Options = Options()

    @property
    def tile(self) -> int:
        return FORMATS[self.format].tile if self.format in FORMATS else 1

    @property
    def align(self) -> int:
        return FORMATS[self.format].align if self.format in FORMATS else 1

    @property
    def row_bytes(self) -> int:
        return (self.weight.end - self.weight.start) // max(1, self.shape[0])

    @property
    def nbytes(self) -> int:
        """Bytes of all its tensors in the file."""
        return sum(info.end - info.start for info in (self.weight, *self.parts.values()))

    def info(self) -> TensorInfo:
        """The weight as a family sees it: the shape of its values, and the format for a dtype."""
        return TensorInfo(self.format, self.shape, self.weight.start, self.weight.end)

    def fits(self, shape: tuple[int, ...]) -> bool:
        """Whether the stored values, without padding, may be a weight of `shape`."""
        return self.shape == tuple(round_up(size, self.tile) for size in shape)

    def part_rows(self, name: str, first: int, stop: int) -> tuple[int, int] | None:
        """Rows of part `name` that belong to the weight's [first, stop); None when it serves all rows."""
        shape = self.parts[name].shape
        if self.align > 1 and name == "weight_scale":
            return first, min(round_up(stop, self.align), shape[0])
        per_row = name not in {"pre_quant_scale", "weight_codebook"} and math.prod(shape) > 1
        return (first, stop) if per_row and shape[0] == self.shape[0] else None
