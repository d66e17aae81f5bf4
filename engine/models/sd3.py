"""Stable Diffusion 3 and 3.5, in the layout of the published files.

Network: https://github.com/Stability-AI/sd3.5 (MIT), run by diffusers' SD3Transformer2DModel.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import nn

from ...protocol.errors import InvalidRequestError, UnsupportedModelError
from . import keymap, transformers
from .contents import Contents
from .family import Conditioning, Config, Shapes
from .keymap import Copy
from .patches import completed
from .requests import check_channels, pooled_text_of, text_of

PATCH = 2
HEAD_DIM = 64
BLOCKS = "transformer_blocks."
EMBED = "time_text_embed."
TABLE = {
    "pos_embed.pos_embed": "pos_embed",
    "pos_embed.proj": "x_embedder.proj",
    f"{EMBED}timestep_embedder.linear_1": "t_embedder.mlp.0",
    f"{EMBED}timestep_embedder.linear_2": "t_embedder.mlp.2",
    f"{EMBED}text_embedder.linear_1": "y_embedder.mlp.0",
    f"{EMBED}text_embedder.linear_2": "y_embedder.mlp.2",
    "proj_out": "final_layer.linear",
} | {
    f"{BLOCKS}*.{ours}": f"joint_blocks.*.{file}"
    for ours, file in (
        ("norm1.linear", "x_block.adaLN_modulation.1"),
        ("norm1_context.linear", "context_block.adaLN_modulation.1"),
        ("attn.norm_q", "x_block.attn.ln_q"),
        ("attn.norm_k", "x_block.attn.ln_k"),
        ("attn.norm_added_q", "context_block.attn.ln_q"),
        ("attn.norm_added_k", "context_block.attn.ln_k"),
        ("attn.to_out.0", "x_block.attn.proj"),
        ("attn.to_add_out", "context_block.attn.proj"),
        ("attn2.norm_q", "x_block.attn2.ln_q"),
        ("attn2.norm_k", "x_block.attn2.ln_k"),
        ("attn2.to_out.0", "x_block.attn2.proj"),
        ("ff.net.0.proj", "x_block.mlp.fc1"),
        ("ff.net.2", "x_block.mlp.fc2"),
        ("ff_context.net.0.proj", "context_block.mlp.fc1"),
        ("ff_context.net.2", "context_block.mlp.fc2"),
    )
}
FUSED = {
    "x_block.attn.qkv": ("attn.to_q", "attn.to_k", "attn.to_v"),
    "context_block.attn.qkv": ("attn.add_q_proj", "attn.add_k_proj", "attn.add_v_proj"),
    "x_block.attn2.qkv": ("attn2.to_q", "attn2.to_k", "attn2.to_v"),
}


class Sd3:
    name = "sd3"
    title = "Stable Diffusion 3"
    transformer = "SD3Transformer2DModel"
    conditioning = frozenset({"context", "y"})
    unread = frozenset[str]()

    def canonical(self, key: str) -> str:
        return key

    def matches(self, contents: Contents) -> bool:
        own = ("joint_blocks.0.context_block.attn.qkv.", "x_embedder.proj.", "pos_embed", "y_embedder.")
        return all(map(contents.has, own)) and not contents.has("context_processor.")

    def config(self, contents: Contents) -> Config:
        hidden, in_channels, patch, _ = contents.shape("x_embedder.proj.weight", 4)
        if patch != PATCH or hidden % HEAD_DIM:
            raise UnsupportedModelError(
                f"{contents.path}: a Stable Diffusion 3 of width {hidden} and patches of {patch}; "
                f"only heads of {HEAD_DIM} and patches of {PATCH} are known."
            )
        layers = contents.count("joint_blocks.")
        side = math.isqrt(contents.shape("pos_embed", 3)[1])
        return {
            "sample_size": side,
            "pos_embed_max_size": side,
            "patch_size": patch,
            "in_channels": in_channels,
            "out_channels": contents.shape("final_layer.linear.weight", 2)[0] // PATCH**2,
            "num_layers": layers,
            "attention_head_dim": HEAD_DIM,
            "num_attention_heads": hidden // HEAD_DIM,
            "joint_attention_dim": contents.shape("context_embedder.weight", 2)[1],
            "caption_projection_dim": contents.shape("context_embedder.weight", 2)[0],
            "pooled_projection_dim": contents.shape("y_embedder.mlp.0.weight", 2)[1],
            "dual_attention_layers": [
                layer for layer in range(layers) if contents.has(f"joint_blocks.{layer}.x_block.attn2.")
            ],
            "qk_norm": "rms_norm" if contents.has("joint_blocks.0.context_block.attn.ln_q.") else None,
        }

    def build(self, config: Config) -> nn.Module:
        return transformers.build(self.transformer, config)

    def key_map(self, shapes: Shapes) -> Iterable[Copy]:
        return keymap.completed(_special(shapes), shapes, TABLE)

    def predict(
        self, module: nn.Module, x: torch.Tensor, timestep: torch.Tensor, given: Conditioning
    ) -> torch.Tensor:
        """`timestep` is sigma * 1000."""
        config: Any = module.config
        check_channels(x, config.in_channels, self.title)
        height, width = x.shape[-2:]
        largest = config.pos_embed_max_size * PATCH
        if max(height, width) > largest:
            raise InvalidRequestError(
                f"This {self.title} knows places in latents up to {largest}x{largest}, "
                f"the request has {height}x{width}.",
                hint="Sample a smaller picture.",
            )
        (sample,) = module(
            hidden_states=completed(x, PATCH),
            encoder_hidden_states=text_of(given, config.joint_attention_dim, self.title),
            pooled_projections=pooled_text_of(given, config.pooled_projection_dim, x, self.title),
            timestep=timestep,
            return_dict=False,
        )
        result: torch.Tensor = sample[..., :height, :width]
        return result


def _special(shapes: Shapes) -> Iterator[Copy]:
    hidden = shapes["pos_embed.proj.weight"][0]
    last = keymap.block_count(shapes, BLOCKS) - 1
    yield from keymap.swapped("final_layer.adaLN_modulation.1", "norm_out.linear", hidden)
    # The text ends before the last block does, whose text is therefore modulated like an output.
    context = f"joint_blocks.{last}.context_block.adaLN_modulation.1"
    yield from keymap.swapped(context, f"{BLOCKS}{last}.norm1_context.linear", hidden)
    for number in range(last + 1):
        for file, parts in FUSED.items():
            targets = [(f"{BLOCKS}{number}.{part}", hidden) for part in parts]
            yield from keymap.fused(f"joint_blocks.{number}.{file}", targets)
