"""Weights rounded to fp8 though the file has more: what UNETLoader's `weight_dtype` asks for.

ComfyUI creates every parameter in that dtype and casts it up at each use, save those that its networks create
in float32 by name, and, in a file with quantised layers, all of its linear layers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import nn

from ....protocol.errors import UnsupportedRequestError
from ..gguf_header import BLOCKS
from ..plan import Read
from ..registry import Detected
from .kitchen import FP8
from .layer import Layer, Options

DEFAULT = "default"
WEIGHT_DTYPES = {"fp8_e4m3fn": "float8_e4m3fn", "fp8_e4m3fn_fast": "float8_e4m3fn", "fp8_e5m2": "float8_e5m2"}
NEVER_ROUNDED: Mapping[str, tuple[str, ...]] = {"wan": ("patch_embedding.",)}
"""By family, starts of the file's keys that ComfyUI keeps in float32."""


def round_plan(plan: Sequence[Read], detected: Detected, module: nn.Module, weight_dtype: str) -> list[Read]:
    """`plan` with the weights rounded as `weight_dtype` says.

    Raises UnsupportedRequestError for one that is not known, and for GGUF, which has no such choice.
    """
    if weight_dtype == DEFAULT:
        return list(plan)
    if weight_dtype not in WEIGHT_DTYPES or any(layer.format in BLOCKS for layer in detected.layers.values()):
        raise UnsupportedRequestError(
            f"{detected.contents.path}: its weights cannot be held as weight_dtype {weight_dtype!r}.",
            hint=f"Choose {DEFAULT!r}"
            + (
                " for a GGUF file."
                if weight_dtype in WEIGHT_DTYPES
                else f", or of {', '.join(WEIGHT_DTYPES)}."
            ),
        )
    described = any(layer.parts for layer in detected.layers.values())
    exempt = NEVER_ROUNDED.get(detected.family.name, ())
    return [
        read
        if _source(read, detected).startswith(exempt or "\0") or (described and _is_linear(read, module))
        else _rounded(read, module, WEIGHT_DTYPES[weight_dtype], fast=weight_dtype.endswith("_fast"))
        for read in plan
    ]


def _source(read: Read, detected: Detected) -> str:
    return read.key.removeprefix(detected.prefix)


def _is_linear(read: Read, module: nn.Module) -> bool:
    return isinstance(module.get_submodule(read.target.rpartition(".")[0]), nn.Linear)


def _rounded(read: Read, module: nn.Module, name: str, *, fast: bool) -> Read:
    if read.target.endswith(".weight") and _is_linear(read, module):
        before = read.layer.weight if read.layer else read.info
        layer = Layer(read.key, name, before, before.shape, options=Options(fast=fast))
        return replace(read, layer=layer, through=FP8[name])
    through: torch.dtype = FP8[name]
    return replace(read, through=through, layer=None, info=read.layer.weight if read.layer else read.info)
