"""LoRA files for the small FLUX and Wan models, one of each kind that ComfyUI reads."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from safetensors.torch import save_file

RANK = 4
Tensors = dict[str, torch.Tensor]
Make = Callable[[str, int, int, torch.Generator], Tensors]

#: Weights by name, with their rows and columns: of the small FLUX, and of the small Wan.
FLUX_WEIGHTS: Mapping[str, tuple[int, int]] = {
    "double_blocks.0.img_attn.qkv": (384, 128),
    "double_blocks.1.txt_mlp.2": (128, 512),
    "single_blocks.0.linear1": (896, 128),
    "single_blocks.1.modulation.lin": (384, 128),
    "final_layer.adaLN_modulation.1": (256, 128),
    "img_in": (128, 64),
}
WAN_WEIGHTS: Mapping[str, tuple[int, int]] = {
    "blocks.0.self_attn.q": (256, 256),
    "blocks.0.cross_attn.k": (256, 256),
    "blocks.1.ffn.0": (256, 256),
    "blocks.1.self_attn.o": (256, 256),
}
NATIVE = "diffusion_model."
NOTHING, PARTLY = "of-another-model.safetensors", "partly.safetensors"


def make(folder: Path) -> None:
    """Every kind for both models, named `<model>-<kind>.safetensors`, and a few of FLUX that are special."""
    for model, weights in (("flux", FLUX_WEIGHTS), ("wan", WAN_WEIGHTS)):
        for seed, (kind, one) in enumerate(KINDS.items(), start=30):
            save_file(of(weights, one, seed), folder / f"{model}-{kind}.safetensors")
    first = {name: FLUX_WEIGHTS[name] for name in list(FLUX_WEIGHTS)[:2]}
    save_file(of(first, lora, 60), folder / "flux-x.safetensors")
    save_file(of(FLUX_WEIGHTS, lora, 61), folder / "flux-y.safetensors")
    save_file(of(first, lora, 68), folder / "flux-once.safetensors")
    save_file(kohya(62), folder / "flux-kohya.safetensors")
    save_file(diffusers(63), folder / "flux-diffusers.safetensors")
    save_file(scales(64), folder / "flux-set.safetensors")
    strange = of({"blocks.9.nowhere": (8, 8), "mid.proj": (8, 8)}, lora, 65)
    save_file(strange, folder / NOTHING)
    save_file(of(first, lora, 66) | strange, folder / PARTLY)
    save_file(of(FLUX_WEIGHTS, lora, 67), folder / "flux-unseen.sft")


def of(weights: Mapping[str, tuple[int, int]], one: Make, seed: int, prefix: str = NATIVE) -> Tensors:
    generator = torch.Generator().manual_seed(seed)
    made: Tensors = {}
    for name, (rows, columns) in weights.items():
        made |= one(f"{prefix}{name}", rows, columns, generator)
    return made


def randn(generator: torch.Generator, *shape: int, scale: float = 0.25) -> torch.Tensor:
    return (torch.randn(shape, generator=generator) * scale).bfloat16()


def lora(name: str, rows: int, columns: int, generator: torch.Generator) -> Tensors:
    return {
        f"{name}.lora_A.weight": randn(generator, RANK, columns),
        f"{name}.lora_B.weight": randn(generator, rows, RANK),
    }


def scaled(name: str, rows: int, columns: int, generator: torch.Generator) -> Tensors:
    """kohya's names, with an alpha that is not the rank."""
    return {
        f"{name}.lora_down.weight": randn(generator, RANK, columns),
        f"{name}.lora_up.weight": randn(generator, rows, RANK),
        f"{name}.alpha": torch.tensor(2.0),
    }


def dora(name: str, rows: int, columns: int, generator: torch.Generator) -> Tensors:
    scale = randn(generator, rows, 1).abs() + 1
    return scaled(name, rows, columns, generator) | {f"{name}.dora_scale": scale}


def loha(name: str, rows: int, columns: int, generator: torch.Generator) -> Tensors:
    pairs = {f"{name}.hada_w{n}_a": randn(generator, rows, RANK, scale=0.5) for n in (1, 2)}
    pairs |= {f"{name}.hada_w{n}_b": randn(generator, RANK, columns, scale=0.5) for n in (1, 2)}
    return pairs | {f"{name}.alpha": torch.tensor(3.0)}


def lokr(name: str, rows: int, columns: int, generator: torch.Generator) -> Tensors:
    return {
        f"{name}.lokr_w1": randn(generator, 8, 8),
        f"{name}.lokr_w2_a": randn(generator, rows // 8, RANK),
        f"{name}.lokr_w2_b": randn(generator, RANK, columns // 8),
        f"{name}.alpha": torch.tensor(2.0),
    }


def glora(name: str, rows: int, columns: int, generator: torch.Generator) -> Tensors:
    return {
        f"{name}.a1.weight": randn(generator, columns, RANK, scale=0.1),
        f"{name}.a2.weight": randn(generator, RANK, columns, scale=0.1),
        f"{name}.b1.weight": randn(generator, rows, RANK),
        f"{name}.b2.weight": randn(generator, RANK, columns),
    }


def oft(name: str, rows: int, columns: int, generator: torch.Generator) -> Tensors:
    return {f"{name}.oft_blocks": randn(generator, rows // 8, 8, 8), f"{name}.alpha": torch.tensor(5.0)}


def boft(name: str, rows: int, columns: int, generator: torch.Generator) -> Tensors:
    return {f"{name}.oft_blocks": randn(generator, 2, rows // 8, 8, 8), f"{name}.alpha": torch.tensor(5.0)}


def diff(name: str, rows: int, columns: int, generator: torch.Generator) -> Tensors:
    return {
        f"{name}.diff": randn(generator, rows, columns, scale=0.02),
        f"{name}.diff_b": randn(generator, rows, scale=0.1),
    }


KINDS: Mapping[str, Make] = {
    "lora": lora,
    "scaled": scaled,
    "dora": dora,
    "loha": loha,
    "lokr": lokr,
    "glora": glora,
    "oft": oft,
    "boft": boft,
    "diff": diff,
}


def kohya(seed: int) -> Tensors:
    """Underscores for dots, and the alpha of a module that has no matrices."""
    plain = {name.replace(".", "_"): shape for name, shape in FLUX_WEIGHTS.items()}
    stray = {"lora_unet_double_blocks_0_img_attn_proj.alpha": torch.tensor(4.0)}
    return of(plain, scaled, seed, "lora_unet_") | stray


def diffusers(seed: int) -> Tensors:
    """diffusers' names: a part of a fused weight, and one whose shift and scale stand the other way."""
    weights = {
        "transformer_blocks.0.attn.to_q": (128, 128),
        "transformer_blocks.0.attn.to_v": (128, 128),
        "single_transformer_blocks.0.proj_mlp": (512, 128),
        "norm_out.linear": (256, 128),
    }
    return of(weights, lora, seed, "transformer.")


def scales(seed: int) -> Tensors:
    """A matrix that is replaced by another."""
    generator = torch.Generator().manual_seed(seed)
    name = "double_blocks.1.txt_mlp.2"
    return {f"{NATIVE}{name}.set_weight": randn(generator, *FLUX_WEIGHTS[name], scale=0.05)}
