"""One small model of each family: what its file holds, and what its graphs need."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from comfyui.graphs import Subject
from models.files import file_shapes
from outboard.engine.models.chroma import Chroma
from outboard.engine.models.family import Family
from outboard.engine.models.flux2 import Flux2
from outboard.engine.models.hunyuan_video import HunyuanVideo
from outboard.engine.models.ltx_video import LtxVideo
from outboard.engine.models.qwen_image import TIMESTEP_ZERO, QwenImage
from outboard.engine.models.sd3 import Sd3
from outboard.engine.models.wan import Wan
from outboard.engine.models.z_image import ZImage

Shapes = dict[str, tuple[int, ...]]
CLIP_WIDTH = 1280


@dataclass(frozen=True)
class Small:
    """A family's network with these arguments; `extra` are further tensors of the file, by shape."""

    family: Family
    config: Mapping[str, Any]
    extra: Shapes = field(default_factory=dict)

    @property
    def shapes(self) -> Shapes:
        return file_shapes(self.family, self.config) | self.extra


WAN_CONFIG: dict[str, Any] = {
    "in_channels": 16,
    "out_channels": 16,
    "num_attention_heads": 2,
    "attention_head_dim": 128,
    "num_layers": 2,
    "ffn_dim": 256,
    "freq_dim": 256,
    "text_dim": 4096,
    "image_dim": None,
    "added_kv_proj_dim": None,
    "pos_embed_seq_len": None,
}
QWEN_CONFIG: dict[str, Any] = {
    "patch_size": 2,
    "in_channels": 64,
    "out_channels": 16,
    "num_layers": 2,
    "attention_head_dim": 128,
    "num_attention_heads": 2,
    "joint_attention_dim": 48,
    "axes_dims_rope": (16, 56, 56),
    "zero_cond_t": False,
}
PICTURED = {"in_channels": 36, "image_dim": CLIP_WIDTH, "added_kv_proj_dim": 256}

FLUX2 = Subject(
    "tiny-flux2.safetensors", context=48, pooled=0, channels=128, height=6, width=10, kind="flux2"
)
WAN = Subject("tiny-wan.safetensors", context=4096, pooled=0, frames=3, kind="wan")
WAN_IMAGE = Subject(
    "tiny-wan-i2v.safetensors",
    context=4096,
    pooled=0,
    frames=3,
    tokens=512,
    clip=257,
    kind="wan-i2v",
    picture=16,
)
WAN_HIGH = Subject("tiny-wan22-high.safetensors", context=4096, pooled=0, frames=3, kind="wan22", picture=16)
WAN_LOW = "tiny-wan22-low.safetensors"
WAN_5B = Subject("tiny-wan22-5b.safetensors", context=4096, pooled=0, channels=48, frames=3, kind="wan22-5b")
WAN_CONTROL = replace(WAN_IMAGE, file="tiny-wan-control.safetensors", kind="wan-control", picture=32)
WAN_FRAMES = replace(WAN_IMAGE, file="tiny-wan-flf2v.safetensors", kind="wan-flf2v", clip=514)
WAN_INPAINT_5B = replace(
    WAN_5B, file="tiny-wan22-5b-inpaint.safetensors", kind="wan22-5b-inpaint", picture=48
)
QWEN = Subject("tiny-qwen.safetensors", context=48, pooled=0, width=14, tokens=7, words=5, kind="qwen")
QWEN_2511 = Subject("tiny-qwen-2511.safetensors", context=48, pooled=0, kind="qwen-2511")
Z_IMAGE = Subject("tiny-z-image.safetensors", context=48, pooled=0, width=14, tokens=9, kind="z-image")
CHROMA = Subject("tiny-chroma.safetensors", context=48, pooled=0, tokens=9, kind="chroma")
SD3 = Subject("tiny-sd3.safetensors", context=48, pooled=24, tokens=9, kind="sd3")
HUNYUAN = Subject("tiny-hunyuan.safetensors", context=48, pooled=768, frames=3, tokens=9, kind="hunyuan")
LTX = Subject(
    "tiny-ltx.safetensors",
    context=4096,
    pooled=0,
    channels=128,
    frames=3,
    height=4,
    width=6,
    scale=32,
    tokens=9,
    words=6,
    kind="ltx",
)
SUBJECTS = (
    FLUX2, WAN, WAN_IMAGE, WAN_FRAMES, WAN_CONTROL, WAN_HIGH, WAN_5B, WAN_INPAINT_5B, QWEN, QWEN_2511,
    Z_IMAGE, CHROMA, SD3, HUNYUAN, LTX,
)  # fmt: skip

SMALL: Mapping[str, Small] = {
    FLUX2.file: Small(
        Flux2(),
        {
            "patch_size": 1,
            "in_channels": 128,
            "out_channels": 128,
            "num_layers": 1,
            "num_single_layers": 2,
            "attention_head_dim": 128,
            "num_attention_heads": 2,
            "joint_attention_dim": 48,
            "mlp_ratio": 3.0,
            "guidance_embeds": True,
            "axes_dims_rope": (32, 32, 32, 32),
        },
    ),
    WAN.file: Small(Wan(), WAN_CONFIG),
    WAN_IMAGE.file: Small(Wan(), WAN_CONFIG | PICTURED),
    WAN_HIGH.file: Small(Wan(), WAN_CONFIG | {"in_channels": 36}),
    WAN_LOW: Small(Wan(), WAN_CONFIG | {"in_channels": 36}),
    WAN_CONTROL.file: Small(Wan(), WAN_CONFIG | PICTURED | {"in_channels": 48}),
    WAN_FRAMES.file: Small(Wan(), WAN_CONFIG | PICTURED | {"pos_embed_seq_len": 514}),
    WAN_INPAINT_5B.file: Small(Wan(), WAN_CONFIG | {"in_channels": 100, "out_channels": 48}),
    WAN_5B.file: Small(Wan(), WAN_CONFIG | {"in_channels": 48, "out_channels": 48}),
    QWEN.file: Small(QwenImage(), QWEN_CONFIG),
    QWEN_2511.file: Small(QwenImage(), QWEN_CONFIG | {"zero_cond_t": True}, {TIMESTEP_ZERO: (0,)}),
    Z_IMAGE.file: Small(
        ZImage(),
        {
            "in_channels": 16,
            "dim": 1152,
            "n_layers": 1,
            "n_refiner_layers": 1,
            "n_heads": 9,
            "n_kv_heads": 9,
            "cap_feat_dim": 48,
            "axes_dims": (32, 48, 48),
            "rope_theta": 256.0,
        },
    ),
    CHROMA.file: Small(
        Chroma(),
        {
            "in_channels": 64,
            "num_layers": 19,
            "num_single_layers": 38,
            "attention_head_dim": 128,
            "num_attention_heads": 1,
            "joint_attention_dim": 48,
            "axes_dims_rope": (16, 56, 56),
            "approximator_num_channels": 64,
            "approximator_hidden_dim": 64,
            "approximator_layers": 2,
        },
    ),
    SD3.file: Small(
        Sd3(),
        {
            "sample_size": 16,
            "pos_embed_max_size": 16,
            "patch_size": 2,
            "in_channels": 16,
            "out_channels": 16,
            "num_layers": 2,
            "attention_head_dim": 64,
            "num_attention_heads": 2,
            "joint_attention_dim": 48,
            "caption_projection_dim": 128,
            "pooled_projection_dim": 24,
            "dual_attention_layers": [0],
            "qk_norm": "rms_norm",
        },
    ),
    HUNYUAN.file: Small(
        HunyuanVideo(),
        {
            "in_channels": 16,
            "out_channels": 16,
            "num_attention_heads": 1,
            "attention_head_dim": 128,
            "num_layers": 1,
            "num_single_layers": 1,
            "num_refiner_layers": 2,
            "guidance_embeds": True,
            "text_embed_dim": 48,
            "pooled_projection_dim": 768,
            "rope_axes_dim": (16, 56, 56),
        },
    ),
    LTX.file: Small(
        LtxVideo(),
        {
            "in_channels": 128,
            "out_channels": 128,
            "num_attention_heads": 32,
            "attention_head_dim": 8,
            "cross_attention_dim": 256,
            "num_layers": 2,
            "caption_channels": 4096,
            "causal_temporal_positioning": False,
        },
    ),
}
"""What each file holds, under its name."""
