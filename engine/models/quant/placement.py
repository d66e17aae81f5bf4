"""In which form each quantised weight lives in memory: in few bits, or as plain values."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from ....protocol.errors import UnsupportedModelError
from ..plan import Read
from .formats import INTEGER
from .kitchen import FP8, kernel_available
from .layer import Layer
from .linear import SMOOTHING
from .unpack import require

FINE = 16
"""Rows and columns that a GPU multiplies in few bits come in multiples of it."""


@dataclass(frozen=True)
class Kept:
    """A linear layer's weight that stays as stored: its reads by target rows, and how it multiplies."""

    layer: Layer
    reads: tuple[Read, ...]
    native: bool


def place(
    plan: Sequence[Read], module: nn.Module, dtype: torch.dtype, device: torch.device
) -> dict[str, Kept]:
    """The weights of `module` that stay in few bits, by name; all others become plain values.

    Those in integers stay so everywhere: their product rounds its input, and a plain one would differ from
    ComfyUI's. On a GPU all that can stay do, to spare its memory; on the CPU values are unpacked once.
    Raises UnsupportedModelError for a format that what is installed cannot unpack.
    """
    for name in sorted({read.layer.format for read in plan if read.layer is not None}):
        require(name)
    reads: dict[str, list[Read]] = defaultdict(list)
    for read in plan:
        reads[read.target].append(read)
    kept = {name: _kept(name, parts, module, dtype, device) for name, parts in reads.items()}
    return {name: found for name, found in kept.items() if found is not None}


def count_layers(plan: Sequence[Read], kept: Mapping[str, Kept]) -> dict[str, int]:
    """How many quantised layers the file has in each form: "<format>" alone multiplies in few bits."""
    forms: dict[str, str] = {}
    for read in plan:
        if read.layer is not None:
            forms[read.key] = _form(read.layer, kept.get(read.target))
    return dict(sorted(Counter(forms.values()).items()))


def kept_bytes(kept: Mapping[str, Kept]) -> int:
    """Bytes of the weights that stay as stored; those rounded to fp8 shrink on their way."""
    return sum(_stored_bytes(found.layer) * sum(read.rows for read in found.reads) for found in kept.values())


def _stored_bytes(layer: Layer) -> int:
    """Bytes of one row with its share of the scales, rounded up."""
    if layer.format in FP8:
        return layer.shape[1]
    return -(-layer.nbytes // max(1, layer.shape[0]))


def _form(layer: Layer, kept: Kept | None) -> str:
    if kept is None:
        return f"{layer.format} dequantised"
    return layer.format if kept.native else f"{layer.format} unpacked at use"


def _kept(
    name: str, reads: Sequence[Read], module: nn.Module, dtype: torch.dtype, device: torch.device
) -> Kept | None:
    layer = reads[0].layer
    if layer is None:
        return None
    linear = module.get_submodule(name.rpartition(".")[0]) if name.endswith(".weight") else None
    if type(linear) is not nn.Linear:
        if SMOOTHING in layer.parts:
            raise UnsupportedModelError(
                f"Tensor {layer.key!r} has a {SMOOTHING} and is no linear layer's.", hint="Use the bf16 file."
            )
        return None
    native = _multiplies(layer, linear, dtype, device)
    if any(read.layer != layer for read in reads) or not (native or device.type == "cuda"):
        return None
    if not all(_cuts_cleanly(layer, read) for read in reads):
        return None
    return Kept(layer, tuple(sorted(reads, key=lambda read: read.target_first)), native)


def _multiplies(layer: Layer, linear: nn.Linear, dtype: torch.dtype, device: torch.device) -> bool:
    if layer.options.full_precision or not kernel_available(layer.format, device):
        return False
    if layer.format in INTEGER:
        return True
    whole = not (linear.in_features % FINE or linear.out_features % FINE)
    return whole and _has_one_scale(layer) and dtype in {torch.bfloat16, torch.float16}


def _has_one_scale(layer: Layer) -> bool:
    """What a GPU needs to multiply in fp8; blocks have their own way."""
    scale = layer.parts.get("weight_scale")
    if scale is None:
        return layer.options.fast
    return layer.align > 1 or math.prod(scale.shape) == 1


def _cuts_cleanly(layer: Layer, read: Read) -> bool:
    """Whether the rows of `read` carry their own scales, or are all there are."""
    if layer.align == 1:
        return True
    whole = read.first == 0 and read.rows > layer.shape[0] - layer.tile
    return whole or not (read.first % layer.align or read.rows % layer.align)
