"""A tiny FLUX.1 quantised in every format of ComfyUI, made by comfy-kitchen."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from comfy_kitchen.tensor import QuantizedTensor
from safetensors.torch import save_file

from models.files import TINY, flux1_shapes, random_tensors

Tensors = dict[str, torch.Tensor]

WIDE = TINY | {"num_attention_heads": 2}
"""So wide that rotations of 256 columns fit its rows."""
BLOCK = "double_blocks.0.img_attn.proj"
FUSED = "double_blocks.0.img_attn.qkv"
SINGLE = "single_blocks.0.linear1"
SWAPPED = "final_layer.adaLN_modulation.1"
ORDINARY = (BLOCK, FUSED, SINGLE, "double_blocks.0.img_mlp.2")

LAYOUTS: Mapping[str, tuple[str, dict[str, Any]]] = {
    "float8_e4m3fn": ("TensorCoreFP8Layout", {"dtype": torch.float8_e4m3fn}),
    "float8_e5m2": ("TensorCoreFP8Layout", {"dtype": torch.float8_e5m2}),
    "nvfp4": ("TensorCoreNVFP4Layout", {}),
    "mxfp8": ("TensorCoreMXFP8Layout", {}),
    "int8_tensorwise": ("TensorWiseINT8Layout", {"per_channel": True}),
    "convrot_w4a4": ("TensorCoreConvRotW4A4Layout", {}),
    "asym_w4a8_int8": ("AsymW4A8Int8Layout", {}),
}
INTEGER_PRODUCTS = ("int8_tensorwise", "convrot_w4a4", "asym_w4a8_int8")
"""The formats whose linear layers round their input to integers."""
W4A8 = {
    "scale": "weight_s_rel",
    "s_channel": "weight_s_channel",
    "codebook": "weight_codebook",
}


def plain() -> Tensors:
    return random_tensors(flux1_shapes(WIDE))


def quantised(name: str, weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    """The tensors of one layer by their endings, and the values they stand for, in float32."""
    layout, options = LAYOUTS[name]
    found = QuantizedTensor.from_float(weight.float(), layout, **options)
    if name == "asym_w4a8_int8":
        parts = {part: getattr(found.params, field) for field, part in W4A8.items()}
        parts = {"weight": found._qdata} | {key: value for key, value in parts.items() if value is not None}
    else:
        parts = {key.removeprefix("."): value for key, value in found.state_dict("weight").items()}
    return {key: value.contiguous() for key, value in parts.items()}, found.dequantize()


def description(**fields: object) -> torch.Tensor:
    return torch.tensor(list(json.dumps(fields).encode()), dtype=torch.uint8)


def model(formats: Mapping[str, str], tensors: Tensors | None = None) -> tuple[Tensors, Tensors]:
    """A file whose layers (name -> format) are quantised, and the float32 values of all its tensors."""
    tensors = dict(tensors or plain())
    values = {key: value.float() for key, value in tensors.items()}
    for layer, name in formats.items():
        parts, values[f"{layer}.weight"] = quantised(name, tensors.pop(f"{layer}.weight"))
        tensors |= {f"{layer}.{key}": value for key, value in parts.items()}
        tensors[f"{layer}.comfy_quant"] = description(format=name)
    return tensors, values


def save(path: Path, tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, str] | None = None) -> Path:
    save_file(dict(tensors), path, dict(metadata) if metadata else None)
    return path
