"""The model files the graphs load: small, random, the same at every run."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from comfyui import quantised, shapes
from comfyui.families import LTX, SMALL, WAN
from comfyui.shapes import Shapes

HIDDEN, CONTEXT, POOLED = 128, 48, 24
LTX2 = "ltx2-shaped.safetensors"
VACE = "wan-vace-shaped.safetensors"
FILL = "tiny-flux-fill.safetensors"
LORA_KEY = "diffusion_model.double_blocks.0.img_attn.qkv"


def make(models: Path) -> None:
    """Fill ComfyUI's `models` folder."""
    unets, loras, nets = (models / name for name in ("diffusion_models", "loras", "controlnet"))
    for folder in (unets, loras, nets):
        folder.mkdir(parents=True, exist_ok=True)
    flux = weights(shapes.flux(HIDDEN, 2, 2, CONTEXT, POOLED), seed=1)
    save_file(flux, unets / "tiny-flux.safetensors")
    fill = shapes.flux(HIDDEN, 2, 2, CONTEXT, POOLED) | {"img_in.weight": (HIDDEN, 384)}
    save_file(weights(fill, seed=8), unets / FILL)
    save_file(
        {f"model.diffusion_model.{key}": value for key, value in flux.items()}, unets / "prefixed.safetensors"
    )
    quantised.make(unets, flux)
    save_file(weights(shapes.ernie(HIDDEN, 2, 256, CONTEXT), seed=2), unets / "tiny-ernie.safetensors")
    for seed, (name, small) in enumerate(SMALL.items(), start=100):
        save_file(weights(small.shapes, seed), unets / name)
    save_file(weights(vace(), seed=3), unets / VACE)
    sound: Shapes = {"audio_adaln_single.linear.weight": (8, 8)}
    save_file(weights(SMALL[LTX.file].shapes | sound, seed=7), unets / LTX2)
    save_file(
        weights(shapes.xlabs_controlnet(HIDDEN, CONTEXT, POOLED), seed=4),
        nets / "tiny-controlnet.safetensors",
    )
    lora: Shapes = {f"{LORA_KEY}.lora_A.weight": (4, HIDDEN), f"{LORA_KEY}.lora_B.weight": (3 * HIDDEN, 4)}
    save_file(weights(lora, seed=5), loras / "tiny-lora.safetensors")


def vace() -> Shapes:
    """A Wan with the layers of VACE, which the engine does not run and stock ComfyUI does."""
    return SMALL[WAN.file].shapes | {
        "vace_patch_embedding.weight": (256, 96, 1, 2, 2),
        "vace_blocks.0.norm3.weight": (256,),
    }


def weights(wanted: Shapes, seed: int) -> dict[str, torch.Tensor]:
    """bf16 weights that keep activations at about one: norms near 1, matrices by their width."""
    generator = torch.Generator().manual_seed(seed)
    made = {}
    for name, shape in wanted.items():
        noise = torch.randn(shape, generator=generator)
        if len(shape) == 1:
            scale = name.endswith((".scale", ".weight"))
            tensor = 1 + 0.1 * noise if scale else 0.1 * noise
        else:
            tensor = noise / torch.Size(shape[1:]).numel() ** 0.5
        made[name] = tensor.bfloat16()
    return made


def lora_for(file: Path) -> dict[str, torch.Tensor]:
    """A LoRA of rank 4 for the first matrix of a block in `file`."""
    with safe_open(file, "pt") as opened:
        shapes = {key: opened.get_slice(key).get_shape() for key in opened.keys()}  # noqa: SIM118
    blocks = (key for key in sorted(shapes) if ".0." in key and key.endswith(".weight"))
    name = next(key for key in blocks if len(shapes[key]) == 2)
    rows, columns = shapes[name]
    base = f"diffusion_model.{name.removesuffix('.weight')}"
    wanted: Shapes = {f"{base}.lora_A.weight": (4, columns), f"{base}.lora_B.weight": (rows, 4)}
    return weights(wanted, seed=6)


def sparse(path: Path, wanted: Shapes) -> int:
    """A bf16 file with the header of these tensors and a hole where its data would be; returns its size."""
    entries: dict[str, object] = {}
    end = 0
    for name, shape in wanted.items():
        start, end = end, end + 2 * torch.Size(shape).numel()
        entries[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [start, end]}
    header = json.dumps(entries).encode()
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        file.truncate(8 + len(header) + end)
    return path.stat().st_size
