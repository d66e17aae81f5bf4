"""FLUX.2: dev and klein, in the layout of the published files.

Network: https://github.com/black-forest-labs/flux2 (Apache-2.0), run by diffusers' Flux2Transformer2DModel.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from ...protocol.errors import UnsupportedModelError
from . import keymap, transformers
from .contents import Contents
from .embedding import embedded_exactly
from .family import Conditioning, Config, Shapes
from .flux1 import DOUBLE, DOUBLE_FUSED, DOUBLE_NORMS, QUERY_NORM, RESAVED_NORM, SINGLE, SINGLE_NORMS
from .keymap import Copy
from .masks import joint_mask
from .patches import unpack
from .references import image_tokens
from .requests import check_channels, text_of

PATCH = 1
HEAD_DIM = 128
AXES = (32, 32, 32, 32)
FRAME_STEP = 10.0
EMBED = "time_guidance_embed."
TABLE = {
    "x_embedder": "img_in",
    "context_embedder": "txt_in",
    f"{EMBED}timestep_embedder.linear_1": "time_in.in_layer",
    f"{EMBED}timestep_embedder.linear_2": "time_in.out_layer",
    f"{EMBED}guidance_embedder.linear_1": "guidance_in.in_layer",
    f"{EMBED}guidance_embedder.linear_2": "guidance_in.out_layer",
    "double_stream_modulation_img.linear": "double_stream_modulation_img.lin",
    "double_stream_modulation_txt.linear": "double_stream_modulation_txt.lin",
    "single_stream_modulation.linear": "single_stream_modulation.lin",
    "proj_out": "final_layer.linear",
    f"{DOUBLE}*.attn.to_out.0": "double_blocks.*.img_attn.proj",
    f"{DOUBLE}*.attn.to_add_out": "double_blocks.*.txt_attn.proj",
    f"{DOUBLE}*.ff.linear_in": "double_blocks.*.img_mlp.0",
    f"{DOUBLE}*.ff.linear_out": "double_blocks.*.img_mlp.2",
    f"{DOUBLE}*.ff_context.linear_in": "double_blocks.*.txt_mlp.0",
    f"{DOUBLE}*.ff_context.linear_out": "double_blocks.*.txt_mlp.2",
    f"{SINGLE}*.attn.to_qkv_mlp_proj": "single_blocks.*.linear1",
    f"{SINGLE}*.attn.to_out": "single_blocks.*.linear2",
} | {
    f"{inside}*.{ours}": f"{block}.*.{file}"
    for inside, block, norms in (
        (DOUBLE, "double_blocks", DOUBLE_NORMS),
        (SINGLE, "single_blocks", SINGLE_NORMS),
    )
    for file, ours in norms.items()
}


class Flux2:
    name = "flux2"
    title = "FLUX.2"
    transformer = "Flux2Transformer2DModel"
    # ComfyUI passes on a pooled prompt (y) whenever a text encoder made one; the network has no input for it.
    conditioning = frozenset(
        {"context", "y", "guidance", "ref_latents", "ref_latents_method", "attention_mask", "rope_options"}
    )
    unread = frozenset[str]()

    def canonical(self, key: str) -> str:
        return RESAVED_NORM.sub(r".\1.scale", key)

    def matches(self, contents: Contents) -> bool:
        own = ("double_stream_modulation_img.", "double_blocks.0.img_attn.qkv.", "single_blocks.0.linear1.")
        return all(map(contents.has, own))

    def config(self, contents: Contents) -> Config:
        hidden, in_channels = contents.shape("img_in.weight", 2)
        (head_dim,) = contents.shape(QUERY_NORM, 1)
        if head_dim != HEAD_DIM or hidden % head_dim:
            raise UnsupportedModelError(
                f"{contents.path}: a FLUX.2 of width {hidden} with heads of {head_dim}; "
                f"only heads of {HEAD_DIM} tell their rotary axes.",
            )
        return {
            "patch_size": PATCH,
            "in_channels": in_channels,
            "out_channels": contents.shape("final_layer.linear.weight", 2)[0],
            "num_layers": contents.count("double_blocks."),
            "num_single_layers": contents.count("single_blocks."),
            "attention_head_dim": head_dim,
            "num_attention_heads": hidden // head_dim,
            "joint_attention_dim": contents.shape("txt_in.weight", 2)[1],
            "mlp_ratio": contents.shape("double_blocks.0.img_mlp.2.weight", 2)[1] / hidden,
            "guidance_embeds": contents.has("guidance_in."),
            "axes_dims_rope": AXES,
        }

    def build(self, config: Config) -> nn.Module:
        return transformers.build(self.transformer, config)

    def key_map(self, shapes: Shapes) -> Iterable[Copy]:
        return keymap.completed(_special(shapes), shapes, TABLE)

    def predict(
        self, module: nn.Module, x: torch.Tensor, timestep: torch.Tensor, given: Conditioning
    ) -> torch.Tensor:
        config: Any = module.config
        check_channels(x, config.in_channels, self.title)
        height, width = x.shape[-2:]
        tokens, ids = image_tokens(x, given, PATCH, self.title, method="index", step=FRAME_STEP)
        context = text_of(given, config.joint_attention_dim, self.title)
        mask = joint_mask(given.get("attention_mask"), context.shape[1] + tokens.shape[1], self.title)
        with embedded_exactly(module.get_submodule(f"{EMBED}timestep_embedder"), timestep * 1000):
            (sample,) = module(
                hidden_states=tokens,
                encoder_hidden_states=context,
                timestep=timestep,
                guidance=given.get("guidance"),
                img_ids=functional.pad(ids, (0, 1)),
                txt_ids=_text_ids(context),
                joint_attention_kwargs=None if mask is None else {"attention_mask": mask},
                return_dict=False,
            )
        return unpack(sample[:, : height * width], PATCH, height, width)


def _special(shapes: Shapes) -> Iterator[Copy]:
    hidden = shapes["x_embedder.weight"][0]
    yield from keymap.swapped("final_layer.adaLN_modulation.1", "norm_out.linear", hidden)
    for number in range(keymap.block_count(shapes, DOUBLE)):
        for file, parts in DOUBLE_FUSED.items():
            targets = [(f"{DOUBLE}{number}.{part}", hidden) for part in parts]
            yield from keymap.fused(f"double_blocks.{number}.{file}", targets)


def _text_ids(context: torch.Tensor) -> torch.Tensor:
    """Ids (L,4): words count up on an axis of their own."""
    ids = torch.zeros((context.shape[1], 4), dtype=torch.float32, device=context.device)
    ids[:, 3] = torch.arange(context.shape[1], device=context.device)
    return ids
