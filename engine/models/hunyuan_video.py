"""HunyuanVideo, text and (by concatenated channels) image to video, in Tencent's key names and in ComfyUI's.

Network: https://github.com/Tencent-Hunyuan/HunyuanVideo, run by diffusers' HunyuanVideoTransformer3DModel.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import nn

from ...protocol.errors import InvalidRequestError, UnsupportedModelError, UnsupportedRequestError
from . import keymap, transformers
from .contents import Contents
from .family import Conditioning, Config, Shapes
from .hooks import changed_inputs
from .keymap import Copy
from .masks import word_mask
from .requests import check_channels, pooled_text_of, text_of
from .rotary import waves

PATCH = 2
HEAD_DIM = 128
AXES = (16, 56, 56)
THETA = 256.0
MLP_RATIO = 4
EMBED, REFINER = "time_text_embed.", "context_embedder.token_refiner.refiner_blocks."
DOUBLE, SINGLE = "transformer_blocks.", "single_transformer_blocks."
FILE_REFINER = "txt_in.individual_token_refiner.blocks."
TABLE = {
    "x_embedder": "img_in",
    f"{EMBED}timestep_embedder.linear_1": "time_in.mlp.0",
    f"{EMBED}timestep_embedder.linear_2": "time_in.mlp.2",
    f"{EMBED}guidance_embedder.linear_1": "guidance_in.mlp.0",
    f"{EMBED}guidance_embedder.linear_2": "guidance_in.mlp.2",
    f"{EMBED}text_embedder.linear_1": "vector_in.in_layer",
    f"{EMBED}text_embedder.linear_2": "vector_in.out_layer",
    f"context_embedder.{EMBED}timestep_embedder.linear_1": "txt_in.t_embedder.mlp.0",
    f"context_embedder.{EMBED}timestep_embedder.linear_2": "txt_in.t_embedder.mlp.2",
    f"context_embedder.{EMBED}text_embedder": "txt_in.c_embedder",
    "context_embedder.proj_in": "txt_in.input_embedder",
    f"{REFINER}*.norm1": f"{FILE_REFINER}*.norm1",
    f"{REFINER}*.norm2": f"{FILE_REFINER}*.norm2",
    f"{REFINER}*.attn.to_out.0": f"{FILE_REFINER}*.self_attn_proj",
    f"{REFINER}*.ff.net.0.proj": f"{FILE_REFINER}*.mlp.fc1",
    f"{REFINER}*.ff.net.2": f"{FILE_REFINER}*.mlp.fc2",
    f"{REFINER}*.norm_out.linear": f"{FILE_REFINER}*.adaLN_modulation.1",
    f"{DOUBLE}*.norm1.linear": "double_blocks.*.img_mod.linear",
    f"{DOUBLE}*.norm1_context.linear": "double_blocks.*.txt_mod.linear",
    f"{DOUBLE}*.attn.norm_q": "double_blocks.*.img_attn_q_norm",
    f"{DOUBLE}*.attn.norm_k": "double_blocks.*.img_attn_k_norm",
    f"{DOUBLE}*.attn.norm_added_q": "double_blocks.*.txt_attn_q_norm",
    f"{DOUBLE}*.attn.norm_added_k": "double_blocks.*.txt_attn_k_norm",
    f"{DOUBLE}*.attn.to_out.0": "double_blocks.*.img_attn_proj",
    f"{DOUBLE}*.attn.to_add_out": "double_blocks.*.txt_attn_proj",
    f"{DOUBLE}*.ff.net.0.proj": "double_blocks.*.img_mlp.fc1",
    f"{DOUBLE}*.ff.net.2": "double_blocks.*.img_mlp.fc2",
    f"{DOUBLE}*.ff_context.net.0.proj": "double_blocks.*.txt_mlp.fc1",
    f"{DOUBLE}*.ff_context.net.2": "double_blocks.*.txt_mlp.fc2",
    f"{SINGLE}*.norm.linear": "single_blocks.*.modulation.linear",
    f"{SINGLE}*.attn.norm_q": "single_blocks.*.q_norm",
    f"{SINGLE}*.attn.norm_k": "single_blocks.*.k_norm",
    f"{SINGLE}*.proj_out": "single_blocks.*.linear2",
    "proj_out": "final_layer.linear",
}
RESAVED = tuple(
    (re.compile(pattern), name)
    for pattern, name in (
        (r"_embedder\.in_layer\.", "_embedder.mlp.0."),
        (r"_embedder\.out_layer\.", "_embedder.mlp.2."),
        (r"c_embedder\.mlp\.0\.", "c_embedder.linear_1."),
        (r"c_embedder\.mlp\.2\.", "c_embedder.linear_2."),
        (r"^(time|guidance)_in\.in_layer\.", r"\1_in.mlp.0."),
        (r"^(time|guidance)_in\.out_layer\.", r"\1_in.mlp.2."),
        (r"(_mod|\.modulation)\.lin\.", r"\1.linear."),
        (r"(_attn)\.(qkv|proj)\.", r"\1_\2."),
        (r"(_mlp|\d\.mlp)\.0\.", r"\1.fc1."),
        (r"(_mlp|\d\.mlp)\.2\.", r"\1.fc2."),
        (r"_attn\.norm\.(q|k)(uery|ey)_norm\.(weight|scale)$", r"_attn_\1_norm.weight"),
        (r"\.norm\.(q|k)(uery|ey)_norm\.(weight|scale)$", r".\1_norm.weight"),
    )
)
VARIANTS = ("byt5_in.", "cond_type_embedding.", "vision_in.", "time_r_in.")


class Rotary(nn.Module):
    """In place of diffusers' own, whose angles are rounded to fp32 before they are taken."""

    def __init__(self, axes: Sequence[int]) -> None:
        super().__init__()
        self.axes = axes

    def forward(self, latent: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Cosines and sines (N, head_dim) for a latent (B,C,T,H,W) of whole patches."""
        frames, height, width = latent.shape[2:]
        sizes = (frames, height // PATCH, width // PATCH)
        ids = torch.cartesian_prod(*(torch.arange(size, device=latent.device) for size in sizes))
        return waves(ids, self.axes, THETA)


class HunyuanVideo:
    name = "hunyuan_video"
    title = "HunyuanVideo"
    transformer = "HunyuanVideoTransformer3DModel"
    conditioning = frozenset({"context", "attention_mask", "y", "guidance"})
    unread = frozenset[str]()

    def canonical(self, key: str) -> str:
        if not key.startswith(("txt_in.", "time_in.", "guidance_in.", "double_blocks.", "single_blocks.")):
            return key
        for pattern, name in RESAVED:
            key = pattern.sub(name, key)
        return key

    def matches(self, contents: Contents) -> bool:
        own = (f"{FILE_REFINER}0.norm1.", "double_blocks.0.img_attn_qkv.", "vector_in.", "img_in.proj.")
        return all(map(contents.has, own)) and not any(map(contents.has, VARIANTS))

    def config(self, contents: Contents) -> Config:
        hidden, in_channels, *patch = contents.shape("img_in.proj.weight", 5)
        (head_dim,) = contents.shape("double_blocks.0.img_attn_q_norm.weight", 1)
        if head_dim != HEAD_DIM or hidden % head_dim or patch != [1, PATCH, PATCH]:
            raise UnsupportedModelError(
                f"{contents.path}: a HunyuanVideo of width {hidden}, heads of {head_dim}, patches {patch}; "
                f"only heads of {HEAD_DIM} and patches of 1x{PATCH}x{PATCH} are known."
            )
        return {
            "in_channels": in_channels,
            "out_channels": contents.shape("final_layer.linear.weight", 2)[0] // PATCH**2,
            "num_attention_heads": hidden // head_dim,
            "attention_head_dim": head_dim,
            "num_layers": contents.count("double_blocks."),
            "num_single_layers": contents.count("single_blocks."),
            "num_refiner_layers": contents.count(FILE_REFINER),
            "guidance_embeds": contents.has("guidance_in."),
            "text_embed_dim": contents.shape("txt_in.input_embedder.weight", 2)[1],
            "pooled_projection_dim": contents.shape("vector_in.in_layer.weight", 2)[1],
            "rope_axes_dim": AXES,
        }

    def build(self, config: Config) -> nn.Module:
        module: Any = transformers.build(self.transformer, config)
        module.rope = Rotary(module.config.rope_axes_dim)
        result: nn.Module = module
        return result

    def key_map(self, shapes: Shapes) -> Iterable[Copy]:
        return keymap.completed(_special(shapes), shapes, TABLE)

    def predict(
        self, module: nn.Module, x: torch.Tensor, timestep: torch.Tensor, given: Conditioning
    ) -> torch.Tensor:
        """`timestep` is sigma * 1000."""
        config: Any = module.config
        check_channels(x, config.in_channels, self.title, dims=5)
        if x.shape[-2] % PATCH or x.shape[-1] % PATCH:
            raise InvalidRequestError(
                f"{self.title} reads latents of even height and width, the request has {list(x.shape)}.",
                hint="Use a width and height that are multiples of 16.",
            )
        context = text_of(given, config.text_embed_dim, self.title)
        guidance = given.get("guidance")
        if config.guidance_embeds and guidance is None:
            raise InvalidRequestError(f"This {self.title} was trained with a guidance; the request has none.")
        # The network was published to pool the words that count; ComfyUI pools all of them.
        pooled = context.sum(dim=1) / context.shape[1]
        embedder = module.get_submodule("context_embedder.time_text_embed")
        with changed_inputs(embedder, lambda inputs: (inputs[0], pooled)):
            (sample,) = module(
                hidden_states=x,
                timestep=timestep,
                encoder_hidden_states=context,
                encoder_attention_mask=_leading_words(given, context),
                pooled_projections=pooled_text_of(given, config.pooled_projection_dim, x, self.title),
                guidance=None if guidance is None else guidance * 1000,
                return_dict=False,
            )
        result: torch.Tensor = sample
        return result


def _leading_words(given: Conditioning, context: torch.Tensor) -> torch.Tensor:
    """Which words count (B,L), as bool; the transformer knows only how many, so they must come first."""
    mask = word_mask(given.get("attention_mask"), context, HunyuanVideo.title)
    if mask is None:
        return torch.ones(context.shape[:2], dtype=torch.bool, device=context.device)
    if bool((mask[:, 1:] & ~mask[:, :-1]).any()):
        raise UnsupportedRequestError(
            f"{HunyuanVideo.title} cannot leave out words in the middle of a prompt.",
            hint="Remove the node that joins or edits masked prompts, or sample with ComfyUI's own loader.",
        )
    return mask


def _special(shapes: Shapes) -> Iterator[Copy]:
    hidden = shapes["x_embedder.proj.weight"][0]
    yield from keymap.swapped("final_layer.adaLN_modulation.1", "norm_out.linear", hidden)
    for number in range(keymap.block_count(shapes, REFINER)):
        targets = [(f"{REFINER}{number}.attn.to_{part}", hidden) for part in "qkv"]
        yield from keymap.fused(f"{FILE_REFINER}{number}.self_attn_qkv", targets)
    for number in range(keymap.block_count(shapes, DOUBLE)):
        targets = [(f"{DOUBLE}{number}.attn.to_{part}", hidden) for part in "qkv"]
        yield from keymap.fused(f"double_blocks.{number}.img_attn_qkv", targets)
        targets = [(f"{DOUBLE}{number}.attn.add_{part}_proj", hidden) for part in "qkv"]
        yield from keymap.fused(f"double_blocks.{number}.txt_attn_qkv", targets)
    for number in range(keymap.block_count(shapes, SINGLE)):
        targets = [(f"{SINGLE}{number}.attn.to_{part}", hidden) for part in "qkv"]
        targets.append((f"{SINGLE}{number}.proj_mlp", MLP_RATIO * hidden))
        yield from keymap.fused(f"single_blocks.{number}.linear1", targets)
