"""FLUX.1: dev, schnell, fill, Kontext and their fine-tunes of any width, in the published files' layout.

Network: https://github.com/black-forest-labs/flux (Apache-2.0), run by diffusers' FluxTransformer2DModel.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import nn

from ...protocol.errors import UnsupportedModelError
from . import keymap, transformers
from .contents import Contents
from .embedding import sinusoid
from .family import Conditioning, Config, Shapes
from .keymap import Copy
from .masks import joint_mask
from .patches import unpack
from .references import image_tokens
from .requests import check_channels, pooled_text_of, text_of
from .residuals import check_lists, per_block

PATCH = 2
HEAD_DIM = 128
AXES = (16, 56, 56)
MLP_RATIO = 4
DOUBLE, SINGLE = "transformer_blocks.", "single_transformer_blocks."
STEM = {
    "img_in": "x_embedder",
    "txt_in": "context_embedder",
    "time_in.in_layer": "time_text_embed.timestep_embedder.linear_1",
    "time_in.out_layer": "time_text_embed.timestep_embedder.linear_2",
    "vector_in.in_layer": "time_text_embed.text_embedder.linear_1",
    "vector_in.out_layer": "time_text_embed.text_embedder.linear_2",
    "final_layer.linear": "proj_out",
}
GUIDANCE = {
    "guidance_in.in_layer": "time_text_embed.guidance_embedder.linear_1",
    "guidance_in.out_layer": "time_text_embed.guidance_embedder.linear_2",
}
DOUBLE_LAYERS = {
    "img_mod.lin": "norm1.linear",
    "txt_mod.lin": "norm1_context.linear",
    "img_attn.proj": "attn.to_out.0",
    "txt_attn.proj": "attn.to_add_out",
    "img_mlp.0": "ff.net.0.proj",
    "img_mlp.2": "ff.net.2",
    "txt_mlp.0": "ff_context.net.0.proj",
    "txt_mlp.2": "ff_context.net.2",
}
DOUBLE_FUSED = {
    "img_attn.qkv": ("attn.to_q", "attn.to_k", "attn.to_v"),
    "txt_attn.qkv": ("attn.add_q_proj", "attn.add_k_proj", "attn.add_v_proj"),
}
DOUBLE_NORMS = {
    "img_attn.norm.query_norm.scale": "attn.norm_q.weight",
    "img_attn.norm.key_norm.scale": "attn.norm_k.weight",
    "txt_attn.norm.query_norm.scale": "attn.norm_added_q.weight",
    "txt_attn.norm.key_norm.scale": "attn.norm_added_k.weight",
}
SINGLE_LAYERS = {"modulation.lin": "norm.linear", "linear2": "proj_out"}
SINGLE_NORMS = {"norm.query_norm.scale": "attn.norm_q.weight", "norm.key_norm.scale": "attn.norm_k.weight"}
RESAVED_NORM = re.compile(r"\.(query_norm|key_norm)\.weight$")
QUERY_NORM = "double_blocks.0.img_attn.norm.query_norm.scale"


def to_checkpoint(state: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """A FluxTransformer2DModel's state dict in the published files' layout (no prefix, `.scale` norms)."""
    return keymap.to_checkpoint(state, list(_key_map({name: tensor.shape for name, tensor in state.items()})))


def _key_map(shapes: Shapes) -> Iterator[Copy]:
    hidden = shapes["x_embedder.weight"][0]
    guided = any(".guidance_embedder." in name for name in shapes)
    for source, target in (STEM | GUIDANCE if guided else STEM).items():
        yield from keymap.linear(source, target)
    yield from keymap.swapped("final_layer.adaLN_modulation.1", "norm_out.linear", hidden)
    for number in range(keymap.block_count(shapes, DOUBLE)):
        yield from double_block(f"double_blocks.{number}.", f"{DOUBLE}{number}.", hidden)
    for number in range(keymap.block_count(shapes, SINGLE)):
        yield from single_block(f"single_blocks.{number}.", f"{SINGLE}{number}.", hidden)


def double_block(source: str, target: str, hidden: int) -> Iterator[Copy]:
    for file, ours in DOUBLE_LAYERS.items():
        yield from keymap.linear(source + file, target + ours)
    for file, parts in DOUBLE_FUSED.items():
        yield from keymap.fused(source + file, [(target + part, hidden) for part in parts])
    for file, ours in DOUBLE_NORMS.items():
        yield Copy(source + file, target + ours)


def single_block(source: str, target: str, hidden: int) -> Iterator[Copy]:
    for file, ours in SINGLE_LAYERS.items():
        yield from keymap.linear(source + file, target + ours)
    parts = [
        ("attn.to_q", hidden),
        ("attn.to_k", hidden),
        ("attn.to_v", hidden),
        ("proj_mlp", MLP_RATIO * hidden),
    ]
    yield from keymap.fused(source + "linear1", [(target + part, rows) for part, rows in parts])
    for file, ours in SINGLE_NORMS.items():
        yield Copy(source + file, target + ours)


class Signal(NamedTuple):
    """What modulates the blocks: timestep (B,) fp32 in 0..1, guidance (B,) and pooled text (B,D)."""

    timestep: torch.Tensor
    guidance: torch.Tensor | None
    pooled: torch.Tensor


class SignalEmbedding(nn.Module):
    """Embeds a Signal, with the same parameters as the class it replaces.

    diffusers rounds the timestep to the model's dtype on its way in, which is far off in bf16; so the exact
    one travels in the place of the pooled text, and the rounded one is not used.
    """

    def __init__(self, stock: nn.Module) -> None:
        super().__init__()
        self.timestep_embedder = stock.get_submodule("timestep_embedder")
        self.text_embedder = stock.get_submodule("text_embedder")
        self.guidance_embedder: nn.Module | None = None
        if hasattr(stock, "guidance_embedder"):
            self.guidance_embedder = stock.get_submodule("guidance_embedder")

    def forward(self, _rounded_timestep: torch.Tensor, signal: Signal) -> torch.Tensor:
        dtype = signal.pooled.dtype
        embedded = self.timestep_embedder(sinusoid(signal.timestep * 1000).to(dtype))
        if self.guidance_embedder is not None and signal.guidance is not None:
            embedded = embedded + self.guidance_embedder(sinusoid(signal.guidance * 1000).to(dtype))
        result: torch.Tensor = embedded + self.text_embedder(signal.pooled)
        return result


class Flux1:
    name = "flux1"
    title = "FLUX.1"
    transformer = "FluxTransformer2DModel"
    conditioning = frozenset(
        {
            "context",
            "y",
            "guidance",
            "control",
            "ref_latents",
            "ref_latents_method",
            "attention_mask",
            "rope_options",
        }
    )
    unread = frozenset[str]()

    def canonical(self, key: str) -> str:
        return RESAVED_NORM.sub(r".\1.scale", key)

    def matches(self, contents: Contents) -> bool:
        own = ("double_blocks.0.img_attn.qkv.", "single_blocks.0.linear1.", "vector_in.in_layer.", "img_in.")
        foreign = (
            "double_stream_modulation_img.",
            "distilled_guidance_layer.",
            "txt_in.individual_token_refiner.",
        )
        return all(map(contents.has, own)) and not any(map(contents.has, foreign))

    def config(self, contents: Contents) -> Config:
        hidden, in_channels = contents.shape("img_in.weight", 2)
        (head_dim,) = contents.shape(QUERY_NORM, 1)
        if head_dim != HEAD_DIM or hidden % head_dim:
            raise UnsupportedModelError(
                f"{contents.path}: a FLUX.1 of width {hidden} with heads of {head_dim}; "
                f"only heads of {HEAD_DIM} tell their rotary axes.",
            )
        return {
            "in_channels": in_channels,
            "out_channels": contents.shape("final_layer.linear.weight", 2)[0],
            "num_layers": contents.count("double_blocks."),
            "num_single_layers": contents.count("single_blocks."),
            "attention_head_dim": head_dim,
            "num_attention_heads": hidden // head_dim,
            "joint_attention_dim": contents.shape("txt_in.weight", 2)[1],
            "pooled_projection_dim": contents.shape("vector_in.in_layer.weight", 2)[1],
            "guidance_embeds": contents.has("guidance_in."),
            "axes_dims_rope": AXES,
        }

    def build(self, config: Config) -> nn.Module:
        module = transformers.build(self.transformer, config)
        module.time_text_embed = SignalEmbedding(module.get_submodule("time_text_embed"))
        return module

    def key_map(self, shapes: Shapes) -> Iterator[Copy]:
        return _key_map(shapes)

    def predict(
        self, module: nn.Module, x: torch.Tensor, timestep: torch.Tensor, given: Conditioning
    ) -> torch.Tensor:
        config: Any = module.config
        check_channels(x, config.in_channels // PATCH**2, self.title)
        height, width = x.shape[-2:]
        tokens, ids = image_tokens(x, given, PATCH, self.title, method="offset")
        control = given.get("control") or {}
        check_lists(control, self.title)
        target_tokens = -(-height // PATCH) * -(-width // PATCH)
        pooled = pooled_text_of(given, config.pooled_projection_dim, x, self.title)
        context = text_of(given, config.joint_attention_dim, self.title)
        mask = joint_mask(given.get("attention_mask"), context.shape[1] + tokens.shape[1], self.title)
        (sample,) = module(
            hidden_states=tokens,
            encoder_hidden_states=context,
            pooled_projections=Signal(timestep, given.get("guidance"), pooled),
            timestep=timestep,
            img_ids=ids,
            txt_ids=ids.new_zeros((context.shape[1], 3)),
            joint_attention_kwargs=None if mask is None else {"attention_mask": mask},
            controlnet_block_samples=per_block(control.get("input"), config.num_layers, tokens),
            controlnet_single_block_samples=per_block(
                control.get("output"), config.num_single_layers, tokens
            ),
            return_dict=False,
        )
        return unpack(sample[:, :target_tokens], PATCH, height, width)
