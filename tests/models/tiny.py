"""Tiny models of any family with random weights, and the few tools to question them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from models.files import TINY, file_shapes, random_tensors, save
from outboard.engine.models.family import Family
from outboard.engine.models.loader import load
from outboard.engine.models.model import Model

CONFIGS: dict[str, dict[str, Any]] = {
    "flux1": TINY,
    "ernie_image": {
        "hidden_size": 128,
        "num_attention_heads": 1,
        "num_layers": 1,
        "ffn_hidden_size": 64,
        "in_channels": 128,
        "out_channels": 128,
        "patch_size": 1,
        "text_in_dim": 24,
        "rope_theta": 256,
        "rope_axes_dim": (32, 48, 48),
    },
    "flux2": {
        "patch_size": 1,
        "in_channels": 8,
        "out_channels": 8,
        "num_layers": 1,
        "num_single_layers": 1,
        "attention_head_dim": 128,
        "num_attention_heads": 1,
        "joint_attention_dim": 24,
        "mlp_ratio": 3.0,
        "guidance_embeds": False,
        "axes_dims_rope": (32, 32, 32, 32),
    },
    "qwen_image": {
        "patch_size": 2,
        "in_channels": 16,
        "out_channels": 4,
        "num_layers": 2,
        "attention_head_dim": 128,
        "num_attention_heads": 1,
        "joint_attention_dim": 24,
        "axes_dims_rope": (16, 56, 56),
        "zero_cond_t": False,
    },
    "z_image": {
        "in_channels": 4,
        "dim": 128,
        "n_layers": 1,
        "n_refiner_layers": 1,
        "n_heads": 1,
        "n_kv_heads": 1,
        "cap_feat_dim": 24,
        "axes_dims": (32, 48, 48),
        "rope_theta": 256.0,
    },
    "wan": {
        "in_channels": 4,
        "out_channels": 4,
        "num_attention_heads": 1,
        "attention_head_dim": 128,
        "num_layers": 1,
        "ffn_dim": 64,
        "freq_dim": 32,
        "text_dim": 24,
        "image_dim": None,
        "added_kv_proj_dim": None,
        "pos_embed_seq_len": None,
    },
    "chroma": {
        "in_channels": 16,
        "num_layers": 1,
        "num_single_layers": 2,
        "attention_head_dim": 128,
        "num_attention_heads": 1,
        "joint_attention_dim": 24,
        "axes_dims_rope": (16, 56, 56),
        "approximator_num_channels": 64,
        "approximator_hidden_dim": 32,
        "approximator_layers": 2,
    },
    "sd3": {
        "sample_size": 6,
        "pos_embed_max_size": 6,
        "patch_size": 2,
        "in_channels": 4,
        "out_channels": 4,
        "num_layers": 2,
        "attention_head_dim": 64,
        "num_attention_heads": 1,
        "joint_attention_dim": 24,
        "caption_projection_dim": 64,
        "pooled_projection_dim": 12,
        "dual_attention_layers": [0],
        "qk_norm": "rms_norm",
    },
    "hunyuan_video": {
        "in_channels": 4,
        "out_channels": 4,
        "num_attention_heads": 1,
        "attention_head_dim": 128,
        "num_layers": 1,
        "num_single_layers": 1,
        "num_refiner_layers": 1,
        "guidance_embeds": True,
        "text_embed_dim": 24,
        "pooled_projection_dim": 12,
        "rope_axes_dim": (16, 56, 56),
    },
    "ltx_video": {
        "in_channels": 4,
        "out_channels": 4,
        "num_attention_heads": 32,
        "attention_head_dim": 6,
        "cross_attention_dim": 192,
        "num_layers": 1,
        "caption_channels": 24,
        "causal_temporal_positioning": False,
    },
}
"""Small networks by family, with the published width of heads."""


def make(
    family: Family,
    config: Mapping[str, Any],
    folder: Path,
    dtype: torch.dtype = torch.float32,
    *,
    told: bool = False,
) -> Model:
    """A model loaded from a file of random weights; its config is inferred from that file unless `told`."""
    weights = random_tensors(file_shapes(family, config), dtype, 0.1)
    path = save(folder / f"{family.name}.safetensors", weights)
    model = load(path, dtype=dtype, device=torch.device("cpu"), config=config if told else None)
    assert model.family == family.name
    read: Any = model.module.config
    assert {key: read[key] for key in config} == dict(config)
    return model


def noise(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def differ(one: torch.Tensor, two: torch.Tensor) -> float:
    return float((one.double() - two.double()).norm() / two.double().norm())
