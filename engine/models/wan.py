"""Wan 2.1 and 2.2: text, image and first-last-frame to video (A14B and TI2V-5B too), in the published layout.

Network: https://github.com/Wan-Video/Wan2.1 and Wan2.2 (Apache-2.0), run by diffusers' WanTransformer3DModel.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn

from ...protocol.errors import InvalidRequestError, UnsupportedModelError, UnsupportedRequestError
from . import keymap, transformers
from .contents import Contents
from .family import Conditioning, Config, Shapes
from .hooks import changed_inputs, changed_output
from .keymap import Copy
from .patches import completed
from .positions import Rope
from .requests import check_channels, text_of
from .rotary import turns
from .wan_attention import SelfAttention

PATCH = 2
HEAD_DIM = 128
THETA = 10_000.0
WORDS = 512
EMBED = "condition_embedder."
TABLE = {
    f"{EMBED}time_embedder.linear_1": "time_embedding.0",
    f"{EMBED}time_embedder.linear_2": "time_embedding.2",
    f"{EMBED}time_proj": "time_projection.1",
    f"{EMBED}text_embedder.linear_1": "text_embedding.0",
    f"{EMBED}text_embedder.linear_2": "text_embedding.2",
    f"{EMBED}image_embedder.norm1": "img_emb.proj.0",
    f"{EMBED}image_embedder.ff.net.0.proj": "img_emb.proj.1",
    f"{EMBED}image_embedder.ff.net.2": "img_emb.proj.3",
    f"{EMBED}image_embedder.norm2": "img_emb.proj.4",
    f"{EMBED}image_embedder.pos_embed": "img_emb.emb_pos",
    "proj_out": "head.head",
    "scale_shift_table": "head.modulation",
    "blocks.*.scale_shift_table": "blocks.*.modulation",
    "blocks.*.norm2": "blocks.*.norm3",
    "blocks.*.ffn.net.0.proj": "blocks.*.ffn.0",
    "blocks.*.ffn.net.2": "blocks.*.ffn.2",
    "blocks.*.attn2.add_k_proj": "blocks.*.cross_attn.k_img",
    "blocks.*.attn2.add_v_proj": "blocks.*.cross_attn.v_img",
    "blocks.*.attn2.norm_added_k": "blocks.*.cross_attn.norm_k_img",
} | {
    f"blocks.*.{ours}.{part}": f"blocks.*.{file}.{leaf}"
    for ours, file in (("attn1", "self_attn"), ("attn2", "cross_attn"))
    for part, leaf in (
        ("to_q", "q"),
        ("to_k", "k"),
        ("to_v", "v"),
        ("to_out.0", "o"),
        ("norm_q", "norm_q"),
        ("norm_k", "norm_k"),
    )
}
VARIANTS = (
    "vace_patch_embedding.",
    "control_adapter.",
    "casual_audio_encoder.",
    "audio_proj.",
    "face_adapter.",
    "patch_embedding_mask.",
    "patch_embedding_pose.",
    "patch_embedding_global.",
    "ref_conv.",
)


class Rotary(nn.Module):
    """In place of diffusers' table of 1024 positions, so that any length goes and rope options are heard."""

    def __init__(self, head_dim: int) -> None:
        super().__init__()
        plane = 2 * (head_dim // 6)
        self.axes = (head_dim - 2 * plane, plane, plane)

    def forward(self, latent: torch.Tensor, rope: Rope | None = None) -> torch.Tensor:
        """Complex turns (N, head_dim/2) for a latent (B,C,T,H,W) of whole patches."""
        rope = rope or Rope()
        frames, height, width = latent.shape[2:]
        time = torch.arange(frames, device=latent.device) * rope.scale_t + rope.shift_t
        rows = torch.arange(height // PATCH, device=latent.device) * rope.scale_y + rope.shift_y
        columns = torch.arange(width // PATCH, device=latent.device) * rope.scale_x + rope.shift_x
        ids = torch.cartesian_prod(time.float(), rows.float(), columns.float())
        return turns(ids, self.axes, THETA)


class Sinusoid(nn.Module):
    """Embeds the timestep with frequencies taken as powers, as this network always did, not as exponentials.

    In fp32 the two differ by 1e-4 of an angle of 1000, ten times what all other rounding adds up to.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width

    def forward(self, timestep: torch.Tensor) -> torch.Tensor:
        half = self.width // 2
        fractions = torch.arange(half, dtype=torch.float32, device=timestep.device) / half
        angles = torch.outer(timestep, torch.pow(10_000, -fractions))
        return torch.cat([angles.cos(), angles.sin()], dim=1)


class ImageEmbedding(nn.Module):
    """Embeds CLIP tokens with the parameters of the class it replaces, which takes two pictures or none."""

    def __init__(self, stock: nn.Module) -> None:
        super().__init__()
        self.norm1 = stock.get_submodule("norm1")
        self.ff = stock.get_submodule("ff")
        self.norm2 = stock.get_submodule("norm2")
        self.pos_embed: nn.Parameter | None = getattr(stock, "pos_embed", None)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        if self.pos_embed is not None:
            tokens = tokens[:, : self.pos_embed.shape[1]]
            tokens = tokens + self.pos_embed[:, : tokens.shape[1]]
        result: torch.Tensor = self.norm2(self.ff(self.norm1(tokens)))
        return result


class Wan:
    name = "wan"
    title = "Wan video"
    transformer = "WanTransformer3DModel"
    # ComfyUI has worked the denoise mask into the timestep already.
    conditioning = frozenset({"context", "clip_fea", "denoise_mask", "rope_options"})
    unread = frozenset[str]()

    def canonical(self, key: str) -> str:
        return key

    def matches(self, contents: Contents) -> bool:
        own = ("head.modulation", "blocks.0.self_attn.q.", "blocks.0.cross_attn.q.", "patch_embedding.")
        return all(map(contents.has, own)) and not any(map(contents.has, VARIANTS))

    def config(self, contents: Contents) -> Config:
        dim, in_channels, *patch = contents.shape("patch_embedding.weight", 5)
        if dim % HEAD_DIM or patch != [1, PATCH, PATCH]:
            raise UnsupportedModelError(
                f"{contents.path}: a Wan of width {dim} and patches {patch}; "
                f"only heads of {HEAD_DIM} and patches of 1x{PATCH}x{PATCH} are known."
            )
        pictured = contents.has("img_emb.")
        placed = contents.has("img_emb.emb_pos")
        return {
            "in_channels": in_channels,
            "out_channels": contents.shape("head.head.weight", 2)[0] // PATCH**2,
            "num_attention_heads": dim // HEAD_DIM,
            "attention_head_dim": HEAD_DIM,
            "num_layers": contents.count("blocks."),
            "ffn_dim": contents.shape("blocks.0.ffn.0.weight", 2)[0],
            "freq_dim": contents.shape("time_embedding.0.weight", 2)[1],
            "text_dim": contents.shape("text_embedding.0.weight", 2)[1],
            "image_dim": contents.shape("img_emb.proj.0.weight", 1)[0] if pictured else None,
            "added_kv_proj_dim": dim if contents.has("blocks.0.cross_attn.k_img.") else None,
            "pos_embed_seq_len": contents.shape("img_emb.emb_pos", 3)[1] if placed else None,
        }

    def build(self, config: Config) -> nn.Module:
        module: Any = transformers.build(self.transformer, config)
        module.rope = Rotary(module.config.attention_head_dim)
        for block in module.blocks:
            block.attn1.processor = SelfAttention()
        embedder = module.condition_embedder
        embedder.timesteps_proj = Sinusoid(module.config.freq_dim)
        if embedder.image_embedder is not None:
            embedder.image_embedder = ImageEmbedding(embedder.image_embedder)
        result: nn.Module = module
        return result

    def key_map(self, shapes: Shapes) -> Iterator[Copy]:
        return keymap.renamed(shapes, TABLE)

    def predict(
        self, module: nn.Module, x: torch.Tensor, timestep: torch.Tensor, given: Conditioning
    ) -> torch.Tensor:
        """`timestep` is sigma * 1000, (B,) or, for a model that keeps frames, (B,T)."""
        config: Any = module.config
        check_channels(x, config.in_channels, self.title, dims=5)
        height, width = x.shape[-2:]
        whole = completed(x, PATCH)
        context = text_of(given, config.text_dim, self.title)
        rope = Rope.parse(given.get("rope_options"), self.title)
        picture = _picture_of(given, config.image_dim)
        if config.added_kv_proj_dim is not None and context.shape[1] != WORDS:
            raise UnsupportedRequestError(
                f"This Wan image-to-video model reads {WORDS} words, the request has {context.shape[1]}.",
                hint="Encode the prompt with Wan's own text encoder, and keep it below that length.",
            )
        with (
            changed_inputs(module.get_submodule("rope"), lambda inputs: (*inputs, rope)),
            _text_for_picture(module, picture is None and config.added_kv_proj_dim is not None),
        ):
            (sample,) = module(
                hidden_states=whole,
                timestep=_per_token(timestep, whole),
                encoder_hidden_states=context,
                encoder_hidden_states_image=picture,
                return_dict=False,
            )
        result: torch.Tensor = sample[..., :height, :width]
        return result


def _picture_of(given: Conditioning, width: int | None) -> torch.Tensor | None:
    """The CLIP tokens (B,N,width); a model without a place for them passes them over, as in ComfyUI."""
    tokens = given.get("clip_fea")
    if width is None or tokens is None:
        return None
    if tokens.ndim != 3 or tokens.shape[-1] != width:
        raise InvalidRequestError(
            f"This Wan model reads CLIP tokens of width {width}, the request has {list(tokens.shape)}.",
            hint="Use the CLIP vision model that belongs to it (CLIP ViT-H).",
        )
    picture: torch.Tensor = tokens
    return picture


def _text_for_picture(module: nn.Module, wanted: bool) -> AbstractContextManager[None]:
    """An image model without CLIP tokens looks for its picture in the text, as in ComfyUI."""
    if not wanted:
        return nullcontext()
    embedder = module.get_submodule(f"{EMBED}text_embedder")
    return changed_output(embedder, lambda words: torch.cat([words, words], dim=1))


def _per_token(timestep: torch.Tensor, latent: torch.Tensor) -> torch.Tensor:
    """(B,) as it is; one per frame (B,T) repeated to one per token (B,N)."""
    if timestep.ndim == 1:
        return timestep
    frames, height, width = latent.shape[2:]
    if timestep.shape[1] != frames:
        raise InvalidRequestError(f"{timestep.shape[1]} timesteps do not go with {frames} latent frames.")
    return timestep.repeat_interleave(math.prod((height // PATCH, width // PATCH)), dim=1)
