"""LoRA files of every kind for a tiny FLUX.1, made up."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from safetensors.torch import save_file

from models.files import flux1_shapes
from models.quant.files import WIDE

Tensors = dict[str, torch.Tensor]
RANK = 4
PROJ, MLP, FUSED, LINEAR1 = (
    "double_blocks.0.img_attn.proj",
    "double_blocks.0.img_mlp.2",
    "double_blocks.0.img_attn.qkv",
    "single_blocks.0.linear1",
)
LAYERS = (PROJ, MLP, FUSED, LINEAR1, "final_layer.adaLN_modulation.1")
SHAPES = flux1_shapes(WIDE)


def noise(*shape: int, size: float = 0.1) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape))) * size


def lora(rows: int, columns: int) -> Tensors:
    return {"lora_up.weight": noise(rows, RANK), "lora_down.weight": noise(RANK, columns)}


def adapters(rows: int, columns: int) -> Iterator[tuple[str, Tensors]]:
    """One of each kind for a weight of that shape, by its name."""
    alpha = {"alpha": torch.tensor(2.0)}
    yield "lora", lora(rows, columns)
    yield "lora with alpha", lora(rows, columns) | alpha
    yield "dora by rows", lora(rows, columns) | alpha | {"dora_scale": noise(rows, 1) + 2}
    yield "dora by columns", lora(rows, columns) | {"dora_scale": noise(1, columns) + 2}
    halves = {"a": (rows, RANK), "b": (RANK, columns)}
    yield (
        "loha",
        {f"hada_w{n}_{half}": noise(*shape, size=0.2 * n) for n in (1, 2) for half, shape in halves.items()}
        | alpha,
    )
    yield "lokr", {"lokr_w1": noise(4, 2), "lokr_w2": noise(rows // 4, columns // 2)}
    yield (
        "lokr of factors",
        {"lokr_w1": noise(4, 2), "lokr_w2_a": noise(rows // 4, RANK), "lokr_w2_b": noise(RANK, columns // 2)}
        | alpha,
    )
    yield (
        "glora",
        {
            "a1.weight": noise(columns, RANK),
            "a2.weight": noise(RANK, columns),
            "b1.weight": noise(rows, RANK),
            "b2.weight": noise(RANK, columns),
        }
        | alpha,
    )
    yield "oft", {"oft_blocks": noise(rows // 16, 16, 16)}
    yield "oft held", {"oft_blocks": noise(rows // 16, 16, 16), "alpha": torch.tensor(0.5)}
    yield "boft", {"oft_blocks": noise(2, rows // 16, 16, 16), "alpha": torch.tensor(0.5)}
    yield "diff", {"diff": noise(rows, columns), "diff_b": noise(rows)}
    yield "set", {"set_weight": noise(rows, columns)}


KINDS = tuple(kind for kind, _ in adapters(16, 16))


def every_kind(layer: str) -> dict[str, Tensors]:
    """By kind, the tensors of a LoRA for one layer under ComfyUI's own names."""
    return {
        kind: {f"diffusion_model.{layer}.{part}": tensor for part, tensor in tensors.items()}
        for kind, tensors in adapters(*SHAPES[f"{layer}.weight"])
    }


def ordinary(*layers: str) -> Tensors:
    """A LoRA for some layers."""
    return {
        f"diffusion_model.{layer}.{part}": tensor
        for layer in layers or LAYERS
        for part, tensor in lora(*SHAPES[f"{layer}.weight"]).items()
    }


def save(path: Path, tensors: Mapping[str, torch.Tensor]) -> Path:
    save_file({key: tensor.contiguous() for key, tensor in tensors.items()}, path)
    return path
