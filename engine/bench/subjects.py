"""What `outboard bench step` measures: one small model of each family, the same for every side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

WORDS, TEXT = 77, 384


@dataclass(frozen=True)
class Stock:
    """ComfyUI's class for a family, its arguments, and what its call takes besides tensors."""

    module: str
    name: str
    arguments: Mapping[str, Any]
    literals: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Subject:
    """A model of `config`, and where it is asked; `latent` and `conditioning` are shapes of tensors."""

    family: str
    config: Mapping[str, Any]
    latent: Sequence[int]
    timestep: float
    conditioning: Mapping[str, Sequence[int]]
    stock: Stock


_FLUX = {
    "in_channels": 64,
    "num_layers": 2,
    "num_single_layers": 6,
    "attention_head_dim": 128,
    "num_attention_heads": 4,
    "joint_attention_dim": TEXT,
    "guidance_embeds": True,
}
_STOCK_FLUX = {
    "image_model": "flux",
    "in_channels": 16,
    "out_channels": 16,
    "vec_in_dim": 128,
    "context_in_dim": TEXT,
    "hidden_size": 512,
    "mlp_ratio": 4.0,
    "num_heads": 4,
    "depth": 2,
    "depth_single_blocks": 6,
    "axes_dim": [16, 56, 56],
    "theta": 10_000,
    "patch_size": 2,
    "qkv_bias": True,
    "guidance_embed": True,
    "txt_ids_dims": [],
}
_TEXT = {"context": (1, WORDS, TEXT)}

SUBJECTS = (
    Subject(
        "flux1",
        _FLUX | {"out_channels": 64, "pooled_projection_dim": 128, "axes_dims_rope": (16, 56, 56)},
        (1, 16, 64, 64),
        0.5,
        _TEXT | {"y": (1, 128), "guidance": (1,)},
        Stock("comfy.ldm.flux.model", "Flux", _STOCK_FLUX),
    ),
    Subject(
        "flux2",
        _FLUX
        | {"patch_size": 1, "in_channels": 128, "out_channels": 128, "mlp_ratio": 3.0}
        | {"axes_dims_rope": (32, 32, 32, 32)},
        (1, 128, 32, 32),
        0.5,
        _TEXT | {"guidance": (1,)},
        Stock(
            "comfy.ldm.flux.model",
            "Flux",
            _STOCK_FLUX
            | {"image_model": "flux2", "in_channels": 128, "out_channels": 128, "vec_in_dim": None}
            | {"mlp_ratio": 3.0, "axes_dim": [32] * 4, "theta": 2000, "patch_size": 1, "qkv_bias": False}
            | {"global_modulation": True, "mlp_silu_act": True, "ops_bias": False, "txt_ids_dims": [3]}
            | {"default_ref_method": "index", "ref_index_scale": 10.0},
        ),
    ),
    Subject(
        "qwen_image",
        {
            "patch_size": 2,
            "in_channels": 64,
            "out_channels": 16,
            "num_layers": 5,
            "attention_head_dim": 128,
            "num_attention_heads": 4,
            "joint_attention_dim": TEXT,
            "axes_dims_rope": (16, 56, 56),
            "zero_cond_t": False,
        },
        (1, 16, 1, 64, 64),
        0.5,
        _TEXT,
        Stock(
            "comfy.ldm.qwen_image.model",
            "QwenImageTransformer2DModel",
            {"num_layers": 5, "num_attention_heads": 4, "joint_attention_dim": TEXT},
        ),
    ),
    Subject(
        # A width of which 8/3 is a multiple of 256, and above 1024: below, the two differ in inner widths.
        "z_image",
        {
            "in_channels": 16,
            "dim": 1152,
            "n_layers": 1,
            "n_refiner_layers": 1,
            "n_heads": 9,
            "n_kv_heads": 9,
            "cap_feat_dim": TEXT,
            "axes_dims": (32, 48, 48),
            "rope_theta": 256.0,
        },
        (1, 16, 64, 64),
        0.5,
        _TEXT,
        Stock(
            "comfy.ldm.lumina.model",
            "NextDiT",
            {
                "in_channels": 16,
                "dim": 1152,
                "n_layers": 1,
                "n_refiner_layers": 1,
                "n_heads": 9,
                "n_kv_heads": 9,
                "cap_feat_dim": TEXT,
                "qk_norm": True,
                "axes_dims": [32, 48, 48],
                "axes_lens": [1536, 512, 512],
                "rope_theta": 256.0,
                "ffn_dim_multiplier": 8 / 3,
                "z_image_modulation": True,
                "time_scale": 1000.0,
                "pad_tokens_multiple": 32,
            },
            {"num_tokens": WORDS},
        ),
    ),
    Subject(
        "wan",
        {
            "in_channels": 16,
            "out_channels": 16,
            "num_attention_heads": 4,
            "attention_head_dim": 128,
            "num_layers": 5,
            "ffn_dim": 2048,
            "freq_dim": 256,
            "text_dim": TEXT,
            "image_dim": None,
            "added_kv_proj_dim": None,
            "pos_embed_seq_len": None,
        },
        (1, 16, 1, 64, 64),
        500.0,
        _TEXT,
        Stock(
            "comfy.ldm.wan.model",
            "WanModel",
            {"dim": 512, "ffn_dim": 2048, "text_dim": TEXT, "num_heads": 4, "num_layers": 5},
        ),
    ),
    Subject(
        "ernie_image",
        {
            "hidden_size": 512,
            "num_attention_heads": 4,
            "num_layers": 6,
            "ffn_hidden_size": 1536,
            "in_channels": 128,
            "out_channels": 128,
            "patch_size": 1,
            "text_in_dim": TEXT,
            "rope_theta": 256,
            "rope_axes_dim": (32, 48, 48),
        },
        (1, 128, 32, 32),
        500.0,
        _TEXT,
        Stock(
            "comfy.ldm.ernie.model",
            "ErnieImageModel",
            {
                "hidden_size": 512,
                "num_attention_heads": 4,
                "num_layers": 6,
                "ffn_hidden_size": 1536,
                "text_in_dim": TEXT,
            },
        ),
    ),
    Subject(
        # Narrower, for its 57 blocks: ComfyUI's class knows no other number.
        "chroma",
        {
            "in_channels": 64,
            "num_layers": 19,
            "num_single_layers": 38,
            "attention_head_dim": 128,
            "num_attention_heads": 2,
            "joint_attention_dim": TEXT,
            "axes_dims_rope": (16, 56, 56),
            "approximator_num_channels": 64,
            "approximator_hidden_dim": 256,
            "approximator_layers": 2,
        },
        (1, 16, 64, 64),
        0.5,
        _TEXT | {"guidance": (1,)},
        Stock(
            "comfy.ldm.chroma.model",
            "Chroma",
            {key: _STOCK_FLUX[key] for key in ("mlp_ratio", "axes_dim", "theta", "patch_size", "qkv_bias")}
            | {"in_channels": 64, "out_channels": 64, "context_in_dim": TEXT, "txt_ids_dims": []}
            | {"hidden_size": 256, "num_heads": 2, "depth": 19, "depth_single_blocks": 38}
            | {"in_dim": 64, "out_dim": 256, "hidden_dim": 256, "n_layers": 2, "vec_in_dim": 0},
        ),
    ),
)
