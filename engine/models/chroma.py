"""Chroma, in the layout of the published files: FLUX.1's blocks, modulated by one small network for all.

Network: https://huggingface.co/lodestones/Chroma (Apache-2.0), run by diffusers' ChromaTransformer2DModel.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import nn

from ...protocol.errors import UnsupportedModelError
from . import keymap, transformers
from .contents import Contents
from .embedding import sinusoid
from .family import Conditioning, Config, Shapes
from .flux1 import AXES, DOUBLE, HEAD_DIM, PATCH, QUERY_NORM, SINGLE, double_block, single_block
from .hooks import changed_inputs
from .keymap import Copy
from .patches import unpack
from .references import image_tokens
from .requests import check_channels, text_of
from .residuals import check_lists, per_block

BLOCKS = (19, 38)
GUIDE = "distilled_guidance_layer."
TABLE = {
    "x_embedder": "img_in",
    "context_embedder": "txt_in",
    "proj_out": "final_layer.linear",
    f"{GUIDE}layers.*.linear_1": f"{GUIDE}layers.*.in_layer",
    f"{GUIDE}layers.*.linear_2": f"{GUIDE}layers.*.out_layer",
}
RESAVED_NORM = re.compile(r"\.(query_norm|key_norm|norms\.\d+)\.weight$")


class Modulation(nn.Module):
    """What the small network reads: timestep, guidance and the number of each modulation, embedded.

    In place of diffusers' module, which rounds the timestep to the model's dtype and takes no guidance but 0.
    """

    def __init__(self, width: int, count: int) -> None:
        super().__init__()
        self.width = width
        self.count = count

    def forward(self, timestep: torch.Tensor, guidance: torch.Tensor) -> torch.Tensor:
        """(B,count,width) in the dtype of `guidance`; timestep (B,) fp32 in 0..1, guidance (B or 1,)."""
        number = torch.arange(self.count, device=timestep.device)
        per_row = [sinusoid(value * 1000, self.width // 4) for value in (timestep, guidance)]
        parts = (
            *(part[:, None].expand(len(timestep), self.count, -1) for part in per_row),
            sinusoid(number * 1000, self.width // 2).expand(len(timestep), -1, -1),
        )
        return torch.cat(parts, dim=-1).to(guidance.dtype)


class Chroma:
    name = "chroma"
    title = "Chroma"
    transformer = "ChromaTransformer2DModel"
    # ComfyUI passes on a pooled prompt (y) whenever a text encoder made one; the network has no input for it.
    conditioning = frozenset({"context", "y", "guidance", "control"})
    unread = frozenset[str]()

    def canonical(self, key: str) -> str:
        return RESAVED_NORM.sub(r".\1.scale", key)

    def matches(self, contents: Contents) -> bool:
        own = (f"{GUIDE}norms.0.", "double_blocks.0.img_attn.qkv.", "single_blocks.0.linear1.", "img_in.")
        return all(map(contents.has, own)) and not contents.has("nerf_blocks.")

    def config(self, contents: Contents) -> Config:
        hidden, in_channels = contents.shape("img_in.weight", 2)
        (head_dim,) = contents.shape(QUERY_NORM, 1)
        blocks = (contents.count("double_blocks."), contents.count("single_blocks."))
        if head_dim != HEAD_DIM or hidden % head_dim or blocks != BLOCKS:
            raise UnsupportedModelError(
                f"{contents.path}: a Chroma of width {hidden}, heads of {head_dim} and {blocks} blocks; "
                f"only heads of {HEAD_DIM} and {BLOCKS} blocks are known."
            )
        approximator, channels = contents.shape(f"{GUIDE}in_proj.weight", 2)
        return {
            "in_channels": in_channels,
            "num_layers": blocks[0],
            "num_single_layers": blocks[1],
            "attention_head_dim": head_dim,
            "num_attention_heads": hidden // head_dim,
            "joint_attention_dim": contents.shape("txt_in.weight", 2)[1],
            "axes_dims_rope": AXES,
            "approximator_num_channels": channels,
            "approximator_hidden_dim": approximator,
            "approximator_layers": contents.count(f"{GUIDE}layers."),
        }

    def build(self, config: Config) -> nn.Module:
        module: Any = transformers.build(self.transformer, config)
        stock = module.time_text_embed
        module.time_text_embed = Modulation(module.config.approximator_num_channels, stock.mod_proj.shape[0])
        result: nn.Module = module
        return result

    def key_map(self, shapes: Shapes) -> Iterable[Copy]:
        return keymap.completed(_special(shapes), shapes, TABLE)

    def predict(
        self, module: nn.Module, x: torch.Tensor, timestep: torch.Tensor, given: Conditioning
    ) -> torch.Tensor:
        config: Any = module.config
        check_channels(x, config.in_channels // PATCH**2, self.title)
        tokens, ids = image_tokens(x, {}, PATCH, self.title, method="offset")
        control = given.get("control") or {}
        check_lists(control, self.title)
        context = text_of(given, config.joint_attention_dim, self.title)
        guidance = given.get("guidance", x.new_zeros(1))
        with changed_inputs(module.get_submodule("time_text_embed"), lambda _: (timestep, guidance)):
            (sample,) = module(
                hidden_states=tokens,
                encoder_hidden_states=context,
                timestep=timestep,
                img_ids=ids,
                txt_ids=ids.new_zeros((context.shape[1], 3)),
                controlnet_block_samples=per_block(control.get("input"), config.num_layers, tokens),
                controlnet_single_block_samples=per_block(
                    control.get("output"), config.num_single_layers, tokens
                ),
                return_dict=False,
            )
        return unpack(sample, PATCH, *x.shape[-2:])


def _special(shapes: Shapes) -> Iterator[Copy]:
    hidden = shapes["x_embedder.weight"][0]
    for number in range(keymap.block_count(shapes, DOUBLE)):
        yield from double_block(f"double_blocks.{number}.", f"{DOUBLE}{number}.", hidden)
    for number in range(keymap.block_count(shapes, SINGLE)):
        yield from single_block(f"single_blocks.{number}.", f"{SINGLE}{number}.", hidden)
    for number in range(keymap.block_count(shapes, f"{GUIDE}norms.")):
        yield Copy(f"{GUIDE}norms.{number}.scale", f"{GUIDE}norms.{number}.weight")
