"""Small files again, in every quantised layout."""

from __future__ import annotations

import json
import re
from collections.abc import Container, Mapping
from pathlib import Path

import torch
from safetensors.torch import save_file

from models import gguf_files
from models.quant import files

Tensors = Mapping[str, torch.Tensor]

PLAIN_FP8 = "tiny-flux-fp8.safetensors"
OLD_FP8 = "tiny-flux-scaled.safetensors"
MIXED = "tiny-flux-mixed.safetensors"
TABLE = "sub/tiny-flux-table.safetensors"
INTEGERS = "tiny-flux-int.safetensors"
GGUF = "sub/tiny-flux-q8.gguf"
UNPACKED = "tiny-flux-q8-unpacked.safetensors"

#: Of one forward with int8 layers. An input on the edge of two steps falls on either side by its last bit,
#: which no two builds of torch share: 7e-4 was seen. Unpacked weights in place of integers are 1e-2 apart.
INTEGER_TOLERANCE = 3e-3

BLOCKS = ("double_blocks.0", "double_blocks.1")
PARTS = ("img_attn.qkv", "img_attn.proj", "img_mlp.0", "img_mlp.2", "txt_attn.qkv")
SINGLE = ("single_blocks.0.linear1", "single_blocks.1.linear2")
LAYERS = (*(f"{block}.{part}" for block in BLOCKS for part in PARTS), *SINGLE)

BLOCK_WEIGHT = re.compile(r"(blocks|layers)\.\d+\..*\.weight$")


def make(folder: Path, flux: Tensors) -> None:
    """Fill `folder` with what the bf16 file `flux` becomes in each layout."""
    (folder / "sub").mkdir(exist_ok=True)
    save_file(plain_fp8(flux), folder / PLAIN_FP8)
    save_file(scaled(flux, LAYERS), folder / OLD_FP8)
    mixed = spread("float8_e4m3fn", "nvfp4", "mxfp8", "float8_e5m2")
    save_file(files.model(mixed, dict(flux))[0], folder / MIXED)
    described, table = tabled(files.model(mixed, dict(flux))[0], mixed)
    save_file(described, folder / TABLE, table)
    save_file(files.model(spread("int8_tensorwise"), dict(flux))[0], folder / INTEGERS)
    arrays = gguf_files.stored(flux, "Q8_0")
    gguf_files.write(folder / GGUF, arrays)
    save_file(
        {key: value.contiguous() for key, value in gguf_files.values(arrays).items()}, folder / UNPACKED
    )


def spread(*formats: str) -> dict[str, str]:
    """Each of the layers in one of `formats` in turn."""
    return {layer: formats[number % len(formats)] for number, layer in enumerate(LAYERS)}


def named(file: str, tensors: Tensors) -> Tensors:
    """`tensors` in the layout of fp8 that the name of a published file tells.

    Not in int8: its products answer a change of 1e-7 with one of 1e-2 in networks as small as these.
    """
    layers = [key.removesuffix(".weight") for key in tensors if BLOCK_WEIGHT.search(key)]
    matrices = [layer for layer in layers if tensors[f"{layer}.weight"].ndim == 2]
    if re.search("fp8.*scaled", file):
        return scaled(tensors, matrices)
    if "fp8_e4m3fn" in file:
        return plain_fp8(tensors)
    if "fp8" in file:
        return files.model(dict.fromkeys(matrices, "float8_e4m3fn"), dict(tensors))[0]
    return tensors


def plain_fp8(tensors: Tensors) -> dict[str, torch.Tensor]:
    """Matrices in fp8, and nothing that says so."""
    return {
        key: value.to(torch.float8_e4m3fn) if value.ndim == 2 else value for key, value in tensors.items()
    }


def scaled(tensors: Tensors, layers: Container[str]) -> dict[str, torch.Tensor]:
    """As files were before layers had descriptions: a marker, and a scale of its own for each fp8 weight."""
    found = {"scaled_fp8": torch.empty(0, dtype=torch.float8_e4m3fn)}
    for key, value in tensors.items():
        layer = key.removesuffix(".weight")
        if layer in layers and layer != key:
            scale = value.float().abs().max() / 448
            found[key] = (value.float() / scale).to(torch.float8_e4m3fn)
            found[f"{layer}.scale_weight"] = scale
        else:
            found[key] = value
    return found


def tabled(tensors: Tensors, formats: Mapping[str, str]) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """The descriptions in a table of the header instead of in tensors."""
    table = {"layers": {layer: {"format": name} for layer, name in formats.items()}}
    kept = {key: value for key, value in tensors.items() if not key.endswith(".comfy_quant")}
    return kept, {"_quantization_metadata": json.dumps(table)}
