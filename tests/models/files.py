"""Safetensors files written by hand: whole, sparse, or wrong on purpose."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from outboard.engine.models.family import Family
from outboard.engine.models.flux1 import Flux1
from outboard.engine.models.header import BITS
from outboard.engine.models.plan import state_shapes

Shape = Sequence[int]
TINY = {
    "in_channels": 64,
    "out_channels": 64,
    "num_layers": 1,
    "num_single_layers": 2,
    "attention_head_dim": 128,
    "num_attention_heads": 1,
    "joint_attention_dim": 24,
    "pooled_projection_dim": 12,
    "guidance_embeds": True,
    "axes_dims_rope": (16, 56, 56),
}
FLUX1_DEV = TINY | {
    "num_layers": 19,
    "num_single_layers": 38,
    "num_attention_heads": 24,
    "joint_attention_dim": 4096,
    "pooled_projection_dim": 768,
}
ERNIE = {
    "x_embedder.proj.weight": (128, 128, 1, 1),
    "x_embedder.proj.bias": (128,),
    "text_proj.weight": (128, 24),
    "time_embedding.linear_1.weight": (128, 128),
    "time_embedding.linear_1.bias": (128,),
    "time_embedding.linear_2.weight": (128, 128),
    "time_embedding.linear_2.bias": (128,),
    "adaLN_modulation.1.weight": (768, 128),
    "adaLN_modulation.1.bias": (768,),
    "layers.0.adaLN_sa_ln.weight": (128,),
    "layers.0.adaLN_mlp_ln.weight": (128,),
    "layers.0.self_attention.to_q.weight": (128, 128),
    "layers.0.self_attention.to_k.weight": (128, 128),
    "layers.0.self_attention.to_v.weight": (128, 128),
    "layers.0.self_attention.to_out.0.weight": (128, 128),
    "layers.0.self_attention.norm_q.weight": (128,),
    "layers.0.self_attention.norm_k.weight": (128,),
    "layers.0.mlp.gate_proj.weight": (64, 128),
    "layers.0.mlp.up_proj.weight": (64, 128),
    "layers.0.mlp.linear_fc2.weight": (128, 64),
    "final_norm.linear.weight": (256, 128),
    "final_norm.linear.bias": (256,),
    "final_linear.weight": (128, 128),
    "final_linear.bias": (128,),
}


def file_shapes(family: Family, config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Names and shapes of a file of `family`, in the published layout."""
    ours = state_shapes(family.build(config))
    shapes: dict[str, tuple[int, ...]] = {}
    for copy in family.key_map(ours):
        rows = copy.source_rows[1] if copy.source_rows else next(iter(ours[copy.target]), 0)
        rows = max(rows, shapes.get(copy.source, (0,))[0])
        shapes[copy.source] = (rows, *ours[copy.target][1:]) if ours[copy.target] else ()
    return shapes


def flux1_shapes(config: Mapping[str, Any] = TINY) -> dict[str, tuple[int, ...]]:
    """Names and shapes of a FLUX.1 file, in the published layout."""
    return file_shapes(Flux1(), config)


def random_tensors(
    shapes: Mapping[str, Shape], dtype: torch.dtype = torch.bfloat16, spread: float = 0.05
) -> dict[str, torch.Tensor]:
    """Small weights; norms near one."""
    generator = torch.Generator().manual_seed(0)
    return {
        name: (torch.randn(*shape, generator=generator) * spread + ("norm." in name)).to(dtype)
        for name, shape in shapes.items()
    }


def save(path: Path, tensors: Mapping[str, torch.Tensor], prefix: str = "") -> Path:
    save_file({prefix + name: tensor for name, tensor in tensors.items()}, path)
    return path


def describe(shapes: Mapping[str, Shape], dtype: str = "BF16", /, **dtypes: str) -> dict[str, Any]:
    """The JSON of a header with these tensors one after another; `dtypes` overrides by name."""
    entries: dict[str, Any] = {}
    end = 0
    for name, shape in shapes.items():
        stored = dtypes.get(name, dtype)
        start, end = end, end + math.prod(shape) * BITS[stored] // 8
        entries[name] = {"dtype": stored, "shape": list(shape), "data_offsets": [start, end]}
    return entries


def write(path: Path, entries: Mapping[str, Any], metadata: Mapping[str, str] | None = None) -> Path:
    """A file with this header and as many zero bytes as it asks for, taking no room on disk."""
    raw = json.dumps({"__metadata__": metadata, **entries} if metadata else entries).encode()
    total = max((entry["data_offsets"][1] for entry in entries.values()), default=0)
    with path.open("wb") as file:
        file.write(len(raw).to_bytes(8, "little") + raw)
        file.truncate(8 + len(raw) + total)
    return path


def write_raw(path: Path, header: bytes, data: bytes = b"") -> Path:
    path.write_bytes(len(header).to_bytes(8, "little") + header + data)
    return path
