"""The formats of ComfyUI's quantised files: which tensors make up a weight, in which dtypes and shapes.

Layouts: https://github.com/Comfy-Org/comfy-kitchen (Apache-2.0).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

Shape = tuple[int, ...]
Shapes = Callable[[int, int], set[Shape]]


@dataclass(frozen=True)
class Part:
    """A tensor beside the weight: the dtypes and, for a weight of (rows, columns), the shapes it may have."""

    dtypes: frozenset[str]
    shapes: Shapes


@dataclass(frozen=True)
class Format:
    """One way to store a weight.

    stored    dtypes of the weight as safetensors spells them
    packed    values in one stored element
    tile      rows and columns are padded to multiples of it
    align     rows that must stay together when a fused weight is cut, since their scales are interleaved
    required, optional    parts by their ending after the layer's name
    """

    name: str
    stored: frozenset[str]
    required: Mapping[str, Part] = field(default_factory=dict)
    optional: Mapping[str, Part] = field(default_factory=dict)
    packed: int = 1
    tile: int = 1
    align: int = 1


def round_up(size: int, multiple: int) -> int:
    """The smallest multiple of `multiple` that is not below `size`."""
    return -(-size // multiple) * multiple


def _one(_rows: int, _columns: int) -> set[Shape]:
    return {(), (1,)}


def _one_or_per_row(rows: int, _columns: int) -> set[Shape]:
    return {(), (1,), (1, 1), (rows, 1)}


def _per_row(rows: int, _columns: int) -> set[Shape]:
    return {(rows,)}


def _per_column(_rows: int, columns: int) -> set[Shape]:
    return {(columns,)}


def _codebook(_rows: int, _columns: int) -> set[Shape]:
    return {(16,)}


def _blocks_of(size: int) -> Shapes:
    """Shape of interleaved block scales (128 x 4 at a time), one for `size` values of a row."""

    def shapes(rows: int, columns: int) -> set[Shape]:
        return {(round_up(rows, 128), round_up(columns // size, 4))}

    return shapes


def _groups_of(size: int) -> Shapes:
    def shapes(rows: int, columns: int) -> set[Shape]:
        return {(rows, columns // size)}

    return shapes


FLOATS = frozenset({"F32", "F16", "BF16"})
SCALE = Part(FLOATS, _one_or_per_row)
TENSOR_SCALE = Part(FLOATS, _one)
INPUT_SCALE = {"input_scale": TENSOR_SCALE}
GROUP = 16
"""Values that share one scale in asym_w4a8_int8."""

FORMATS: Mapping[str, Format] = {
    entry.name: entry
    for entry in (
        # Old files declare e5m2 data as e4m3fn; it is converted before it is scaled, as ComfyUI does.
        Format("float8_e4m3fn", frozenset({"F8_E4M3", "F8_E5M2"}), {"weight_scale": SCALE}, INPUT_SCALE),
        Format("float8_e5m2", frozenset({"F8_E5M2"}), {"weight_scale": SCALE}, INPUT_SCALE),
        Format(
            "nvfp4",
            frozenset({"U8"}),
            {
                "weight_scale": Part(frozenset({"F8_E4M3", "U8"}), _blocks_of(16)),
                "weight_scale_2": TENSOR_SCALE,
            },
            INPUT_SCALE | {"pre_quant_scale": Part(FLOATS, _per_column)},
            packed=2,
            tile=16,
            align=128,
        ),
        Format(
            "mxfp8",
            frozenset({"F8_E4M3"}),
            {"weight_scale": Part(frozenset({"F8_E8M0", "U8"}), _blocks_of(32))},
            INPUT_SCALE,
            tile=32,
            align=128,
        ),
        Format("int8_tensorwise", frozenset({"I8"}), {"weight_scale": SCALE}),
        Format("convrot_w4a4", frozenset({"I8"}), {"weight_scale": Part(FLOATS, _per_row)}, packed=2),
        Format(
            "asym_w4a8_int8",
            frozenset({"I8"}),
            {
                "weight_s_rel": Part(FLOATS | {"F8_E4M3", "U8"}, _groups_of(GROUP)),
                "weight_s_channel": Part(FLOATS, _per_row),
            },
            {"weight_codebook": Part(FLOATS, _codebook)},
            packed=2,
        ),
    )
}
INTEGER = frozenset({"int8_tensorwise", "convrot_w4a4", "asym_w4a8_int8"})
"""Formats whose product rounds its input to integers too, on every device, as ComfyUI's does."""
