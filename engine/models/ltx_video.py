"""LTX-Video 0.9, in the layout of the published files; what shapes do not tell stands in their metadata.

Network: https://github.com/Lightricks/LTX-Video (Apache-2.0), run by diffusers' LTXVideoTransformer3DModel.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn

from ...protocol.errors import CheckpointError, InvalidRequestError, UnsupportedModelError
from . import keymap, transformers
from .contents import Contents
from .family import Conditioning, Config, Shapes
from .keymap import Copy
from .masks import word_mask
from .requests import check_channels, text_of

HEADS = 32
VAE_SCALE = (8, 32, 32)
CAUSAL = "causal_temporal_positioning"
TABLE = {"proj_in": "patchify_proj", "time_embed": "adaln_single"} | {
    f"transformer_blocks.*.{attention}.norm_{part}": f"transformer_blocks.*.{attention}.{part}_norm"
    for attention in ("attn1", "attn2")
    for part in "qk"
}
VARIANTS = ("audio_adaln_single.", "pos_embed.", "keyframes_abs_pos_embedding", "prompt_adaln_single.")
STATED = {
    "positional_embedding_theta": 10_000.0,
    "positional_embedding_max_pos": [20, 2048, 2048],
    "use_middle_indices_grid": False,
    "timestep_scale_multiplier": 1000,
    "vae_scale_factors": list(VAE_SCALE),
}


class LtxVideo:
    name = "ltx_video"
    title = "LTX-Video"
    transformer = "LTXVideoTransformer3DModel"
    # ComfyUI has worked the denoise mask into the timestep already.
    conditioning = frozenset({"context", "attention_mask", "frame_rate", "denoise_mask"})
    unread = frozenset[str]()

    def canonical(self, key: str) -> str:
        return key

    def matches(self, contents: Contents) -> bool:
        own = ("adaln_single.emb.timestep_embedder.", "transformer_blocks.0.attn2.q_norm.", "patchify_proj.")
        return all(map(contents.has, own)) and not any(map(contents.has, VARIANTS))

    def config(self, contents: Contents) -> Config:
        stated = _stated(contents)
        hidden, in_channels = contents.shape("patchify_proj.weight", 2)
        heads = stated.get("num_attention_heads", HEADS)
        if hidden % heads:
            raise UnsupportedModelError(f"{contents.path}: an LTX-Video of width {hidden} and {heads} heads.")
        return {
            "in_channels": in_channels,
            "out_channels": contents.shape("proj_out.weight", 2)[0],
            "num_attention_heads": heads,
            "attention_head_dim": hidden // heads,
            "cross_attention_dim": contents.shape("transformer_blocks.0.attn2.to_k.weight", 2)[1],
            "num_layers": contents.count("transformer_blocks."),
            "caption_channels": contents.shape("caption_projection.linear_1.weight", 2)[1],
            CAUSAL: bool(stated.get(CAUSAL, False)),
        }

    def build(self, config: Config) -> nn.Module:
        known = {key: value for key, value in config.items() if key != CAUSAL}
        module: Any = transformers.build(self.transformer, known)
        module.register_to_config(**{CAUSAL: config.get(CAUSAL, False)})
        result: nn.Module = module
        return result

    def key_map(self, shapes: Shapes) -> Iterator[Copy]:
        return keymap.renamed(shapes, TABLE)

    def predict(
        self, module: nn.Module, x: torch.Tensor, timestep: torch.Tensor, given: Conditioning
    ) -> torch.Tensor:
        """`timestep` is sigma, (B,) or, for frames that are kept, one per token (B,N,1)."""
        config: Any = module.config
        check_channels(x, config.in_channels, self.title, dims=5)
        frames, height, width = x.shape[2:]
        if timestep.ndim > 1 and timestep.shape[1] != frames * height * width:
            raise InvalidRequestError(
                f"{timestep.shape[1]} timesteps do not go with a latent {list(x.shape)}."
            )
        context = text_of(given, config.caption_channels, self.title)
        (sample,) = module(
            hidden_states=x.flatten(2).transpose(1, 2),
            encoder_hidden_states=context,
            timestep=timestep.flatten(1) * 1000 if timestep.ndim > 1 else timestep * 1000,
            encoder_attention_mask=word_mask(given.get("attention_mask"), context, self.title),
            video_coords=_coordinates(x, float(given.get("frame_rate", 25)), config[CAUSAL]),
            return_dict=False,
        )
        result: torch.Tensor = sample.transpose(1, 2).reshape(len(x), -1, frames, height, width)
        return result


def _stated(contents: Contents) -> Mapping[str, Any]:
    """What the file's metadata say of the transformer; nothing in older files."""
    try:
        described = json.loads(contents.metadata.get("config", "{}"))
    except ValueError as error:
        raise CheckpointError(f"{contents.path}: its metadata are no JSON: {error}.") from error
    stated = described.get("transformer", {}) if isinstance(described, dict) else {}
    for key, value in STATED.items():
        if stated.get(key, value) != value:
            raise UnsupportedModelError(
                f"{contents.path}: looks like an LTX-Video of another kind: {key} is {stated[key]!r}.",
                hint="Use ComfyUI's own loader.",
            )
    return dict(stated)


def _coordinates(x: torch.Tensor, frame_rate: float, causal: bool) -> torch.Tensor:
    """Seconds, rows and columns (B,3,N) in the decoded video; a causal VAE's first frame is one picture."""
    axes = [
        torch.arange(size, dtype=torch.float32, device=x.device) * scale
        for size, scale in zip(x.shape[2:], VAE_SCALE, strict=True)
    ]
    if causal:
        axes[0] = (axes[0] + 1 - VAE_SCALE[0]).clamp(min=0)
    axes[0] = axes[0] * (1.0 / frame_rate)
    return torch.cartesian_prod(*axes).T[None].expand(len(x), -1, -1)
