"""Z-Image and Z-Image-Turbo, in the layout of the files published for ComfyUI.

Network: https://github.com/Tongyi-MAI/Z-Image (Apache-2.0), run by diffusers' ZImageTransformer2DModel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import nn

from ...protocol.errors import UnsupportedModelError
from . import keymap, transformers
from .contents import Contents
from .family import Conditioning, Config, Shapes
from .hooks import Inputs, changed_inputs
from .keymap import Copy
from .patches import completed
from .positions import Rope
from .requests import check_channels, texts_of
from .rotary import turns

PATCH = 2
HEAD_DIM = 128
AXES = (32, 48, 48)
THETA = 256.0
BLOCKS = ("layers", "noise_refiner", "context_refiner")
TABLE = {"all_x_embedder.2-1": "x_embedder", "all_final_layer.2-1": "final_layer"} | {
    f"{block}.*.attention.{ours}": f"{block}.*.attention.{file}"
    for block in BLOCKS
    for ours, file in (("to_out.0", "out"), ("norm_q", "q_norm"), ("norm_k", "k_norm"))
}


class Rotary(nn.Module):
    """In place of diffusers' table, which ends at some length of prompt or size of image."""

    def __init__(self, axes: Sequence[int]) -> None:
        super().__init__()
        self.axes = axes

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return turns(ids, self.axes, THETA)


class ZImage:
    name = "z_image"
    title = "Z-Image"
    transformer = "ZImageTransformer2DModel"
    # ComfyUI says how many tokens the text has, and passes on a pooled prompt if a text encoder made one; the
    # network has no input for either.
    conditioning = frozenset({"context", "num_tokens", "clip_text_pooled", "rope_options"})
    unread = frozenset({"norm_final.weight"})
    # The network takes a list of texts, and masks what it fills up the shorter ones with.
    ragged = frozenset({"context", "num_tokens"})

    def canonical(self, key: str) -> str:
        return key

    def matches(self, contents: Contents) -> bool:
        own = ("cap_pad_token", "x_pad_token", "noise_refiner.0.attention.qkv.", "x_embedder.weight")
        foreign = ("siglip_embedder.", "dec_net.", "control_layers.")
        return all(map(contents.has, own)) and not any(map(contents.has, foreign))

    def config(self, contents: Contents) -> Config:
        dim, pixels = contents.shape("x_embedder.weight", 2)
        (head_dim,) = contents.shape("layers.0.attention.q_norm.weight", 1)
        if head_dim != HEAD_DIM or dim % head_dim:
            raise UnsupportedModelError(
                f"{contents.path}: a Z-Image of width {dim} with heads of {head_dim}; "
                f"only heads of {HEAD_DIM} tell their rotary axes.",
            )
        return {
            "in_channels": pixels // PATCH**2,
            "dim": dim,
            "n_layers": contents.count("layers."),
            "n_refiner_layers": contents.count("noise_refiner."),
            "n_heads": dim // head_dim,
            "n_kv_heads": dim // head_dim,
            "cap_feat_dim": contents.shape("cap_embedder.0.weight", 1)[0],
            "axes_dims": AXES,
            "rope_theta": THETA,
        }

    def build(self, config: Config) -> nn.Module:
        module: Any = transformers.build(self.transformer, config)
        module.rope_embedder = Rotary(module.config.axes_dims)
        for block in (*module.noise_refiner, *module.context_refiner, *module.layers):
            # ComfyUI gives these norms no eps, so that torch's smallest counts; diffusers gives them 1e-5.
            block.attention.norm_q.eps = block.attention.norm_k.eps = torch.finfo(torch.float32).eps
        result: nn.Module = module
        return result

    def key_map(self, shapes: Shapes) -> Iterable[Copy]:
        return keymap.completed(_fused(shapes), shapes, TABLE)

    def predict(
        self, module: nn.Module, x: torch.Tensor, timestep: torch.Tensor, given: Conditioning
    ) -> torch.Tensor:
        """The network counts time from noise to image and points that way, so both are turned round here."""
        config: Any = module.config
        check_channels(x, config.in_channels, self.title)
        height, width = x.shape[-2:]
        texts = texts_of(given, config.cap_feat_dim, self.title)
        rope = Rope.parse(given.get("rope_options"), self.title)
        with changed_inputs(module.get_submodule("rope_embedder"), _moved(rope)):
            (sample,) = module(
                x=list(completed(x, PATCH)[:, :, None]),
                t=1.0 - timestep,
                cap_feats=texts,
                return_dict=False,
            )
        return -torch.stack(sample)[:, :, 0, :height, :width]


def _fused(shapes: Shapes) -> Iterator[Copy]:
    dim = shapes["x_pad_token"][-1]
    for block in BLOCKS:
        for number in range(keymap.block_count(shapes, f"{block}.")):
            attention = f"{block}.{number}.attention."
            targets = [(f"{attention}to_{part}", dim) for part in "qkv"]
            yield from keymap.fused(f"{attention}qkv", targets)


def _moved(rope: Rope) -> Callable[[Inputs], Inputs]:
    """Stretch and shift the ids of the image, which come before those of the text; padding stays at 0."""
    image_first = iter((True,))

    def move(inputs: Inputs) -> Inputs:
        if rope.is_identity or not next(image_first, False):
            return inputs
        ids = inputs[0].float()
        moved = ids * ids.new_tensor((1.0, rope.scale_y, rope.scale_x))
        moved = moved + ids.new_tensor((0.0, rope.shift_y, rope.shift_x))
        return (torch.where(ids[:, :1] > 0, moved, ids),)

    return move
