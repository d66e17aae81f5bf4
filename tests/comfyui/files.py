"""The model files the graphs load: small, random, the same at every run."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import torch
from safetensors.torch import save_file

from comfyui import shapes
from comfyui.shapes import Shapes

HIDDEN, CONTEXT, POOLED = 128, 48, 24
LORA_KEY = "diffusion_model.double_blocks.0.img_attn.qkv"


def make(models: Path) -> None:
    """Fill ComfyUI's `models` folder."""
    unets, loras, nets = (models / name for name in ("diffusion_models", "loras", "controlnet"))
    for folder in (unets, loras, nets):
        folder.mkdir(parents=True, exist_ok=True)
    flux = weights(shapes.flux(HIDDEN, 2, 2, CONTEXT, POOLED), seed=1)
    save_file(flux, unets / "tiny-flux.safetensors")
    save_file(
        {f"model.diffusion_model.{key}": value for key, value in flux.items()}, unets / "prefixed.safetensors"
    )
    save_file(weights(shapes.ernie(HIDDEN, 2, 256, CONTEXT), seed=2), unets / "tiny-ernie.safetensors")
    save_file(weights(shapes.wan(128, 256), seed=3), unets / "wan-shaped.safetensors")
    save_file(
        weights(shapes.xlabs_controlnet(HIDDEN, CONTEXT, POOLED), seed=4),
        nets / "tiny-controlnet.safetensors",
    )
    lora: Shapes = {f"{LORA_KEY}.lora_A.weight": (4, HIDDEN), f"{LORA_KEY}.lora_B.weight": (3 * HIDDEN, 4)}
    save_file(weights(lora, seed=5), loras / "tiny-lora.safetensors")


def weights(wanted: Shapes, seed: int) -> dict[str, torch.Tensor]:
    """bf16 weights that keep activations at about one: norms near 1, matrices by their width."""
    generator = torch.Generator().manual_seed(seed)
    made = {}
    for name, shape in wanted.items():
        noise = torch.randn(shape, generator=generator)
        if len(shape) == 1:
            scale = name.endswith((".scale", "norm_q.weight", "norm_k.weight", "_ln.weight", "norm3.weight"))
            tensor = 1 + 0.1 * noise if scale else 0.1 * noise
        else:
            tensor = noise / torch.Size(shape[1:]).numel() ** 0.5
        made[name] = tensor.bfloat16()
    return made


def sparse_flux(path: Path, doubles: int = 19, singles: int = 38) -> int:
    """A file with the header of FLUX.1-dev and a hole where its 24 GB would be; returns its size."""
    entries: dict[str, object] = {}
    end = 0
    for name, shape in shapes.flux(3072, doubles, singles, 4096, 768).items():
        start, end = end, end + 2 * torch.Size(shape).numel()
        entries[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [start, end]}
    header = json.dumps(entries).encode()
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        file.truncate(8 + len(header) + end)
    return path.stat().st_size
