"""Qwen-Image and Qwen-Image-Edit (first, 2509 and 2511), whose published keys are diffusers' own.

Network: https://github.com/QwenLM/Qwen-Image (Apache-2.0), run by diffusers' QwenImageTransformer2DModel.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import nn

from ...protocol.errors import UnsupportedModelError, UnsupportedRequestError
from . import keymap, transformers
from .contents import Contents
from .embedding import embedded_exactly
from .family import Conditioning, Config, Shapes
from .keymap import Copy
from .masks import word_mask
from .patches import pack_frames, unpack_frames
from .positions import Place, Rope, image_ids, place_by_index, place_by_offset
from .requests import check_channels, references_of, text_of
from .residuals import check_lists, per_block
from .rotary import turns

PATCH = 2
HEAD_DIM = 128
AXES = (16, 56, 56)
THETA = 10_000.0
TIMESTEP_ZERO = "__index_timestep_zero__"
TIMESTEP_EMBEDDER = "time_text_embed.timestep_embedder"
MAGE_FLOW = (2560,)  # text of this width is another network's that has the same keys
QUERY_NORM = "transformer_blocks.0.attn.norm_q.weight"


class Grids(list[tuple[int, int, int]]):
    """Token grids (frames, rows, columns) of the target and its references, with their ids (N,3).

    A list of grids is what the transformer expects; it reads the sizes and hands it on to the rotary module.
    """

    def __init__(self, images: Sequence[torch.Tensor], places: Iterable[Place]) -> None:
        super().__init__((image.shape[2], *_grid(image)) for image in images)
        device = images[0].device
        self.ids = torch.cat(
            [_ids(grid, place, device) for grid, place in zip(self, places, strict=True)], dim=0
        )

    @property
    def tokens_of_target(self) -> int:
        frames, rows, columns = self[0]
        return frames * rows * columns


def _grid(image: torch.Tensor) -> tuple[int, int]:
    return -(-image.shape[-2] // PATCH), -(-image.shape[-1] // PATCH)


def _ids(grid: tuple[int, int, int], place: Place, device: torch.device) -> torch.Tensor:
    """Every image is centred on its place, the odd row before the centre; several frames count from 0."""
    frames, rows, columns = grid
    row, column = place.row - rows // 2, place.column - columns // 2
    indices = range(frames) if frames > 1 else [place.index]
    return torch.cat(
        [image_ids(rows, columns, Place(index, row, column), Rope(), device) for index in indices]
    )


class Rotary(nn.Module):
    """In place of diffusers' table, which centres odd grids otherwise and puts text behind the largest."""

    def __init__(self, axes: Sequence[int]) -> None:
        super().__init__()
        self.axes = axes

    def forward(
        self, img_shapes: Sequence[Grids], max_txt_seq_len: int, device: torch.device
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Complex turns of image tokens (N, 64) and of words (L, 64)."""
        _, rows, columns = img_shapes[0][0]
        start = max(rows // 2, columns // 2)
        words = torch.arange(start, start + max_txt_seq_len, dtype=torch.float32, device=device)
        ids = words[:, None].expand(-1, len(self.axes))
        return turns(img_shapes[0].ids, self.axes, THETA), turns(ids, self.axes, THETA)


class QwenImage:
    name = "qwen_image"
    title = "Qwen-Image"
    transformer = "QwenImageTransformer2DModel"
    conditioning = frozenset({"context", "attention_mask", "control", "ref_latents", "ref_latents_method"})
    unread = frozenset({TIMESTEP_ZERO})

    def canonical(self, key: str) -> str:
        return key

    def matches(self, contents: Contents) -> bool:
        own = ("txt_norm.weight", "transformer_blocks.0.img_mod.1.", "transformer_blocks.0.attn.add_q_proj.")
        foreign = ("time_text_embed.addition_t_embedding.", "transformer_blocks.0.img_mlp.w1.")
        return (
            all(map(contents.has, own))
            and not any(map(contents.has, foreign))
            and contents["txt_norm.weight"].shape != MAGE_FLOW
        )

    def config(self, contents: Contents) -> Config:
        hidden, in_channels = contents.shape("img_in.weight", 2)
        (head_dim,) = contents.shape(QUERY_NORM, 1)
        if head_dim != HEAD_DIM or hidden % head_dim:
            raise UnsupportedModelError(
                f"{contents.path}: a Qwen-Image of width {hidden} with heads of {head_dim}; "
                f"only heads of {HEAD_DIM} tell their rotary axes.",
            )
        return {
            "patch_size": PATCH,
            "in_channels": in_channels,
            "out_channels": contents.shape("proj_out.weight", 2)[0] // PATCH**2,
            "num_layers": contents.count("transformer_blocks."),
            "attention_head_dim": head_dim,
            "num_attention_heads": hidden // head_dim,
            "joint_attention_dim": contents.shape("txt_in.weight", 2)[1],
            "axes_dims_rope": AXES,
            "zero_cond_t": contents.has(TIMESTEP_ZERO),
        }

    def build(self, config: Config) -> nn.Module:
        module = transformers.build(self.transformer, config)
        axes: Any = module.config
        module.pos_embed = Rotary(axes.axes_dims_rope)
        return module

    def key_map(self, shapes: Shapes) -> Iterator[Copy]:
        return keymap.identity(shapes)

    def predict(
        self, module: nn.Module, x: torch.Tensor, timestep: torch.Tensor, given: Conditioning
    ) -> torch.Tensor:
        config: Any = module.config
        check_channels(x, config.in_channels // PATCH**2, self.title, dims=5)
        references = references_of(given, x)
        method = given.get("ref_latents_method") or ("index_timestep_zero" if config.zero_cond_t else "index")
        grids = Grids([x, *references], [Place(), *_places(method, references)])
        tokens = torch.cat([pack_frames(image, PATCH) for image in (x, *references)], dim=1)
        control = given.get("control") or {}
        check_lists(control, self.title)
        context = text_of(given, config.joint_attention_dim, self.title)
        still = bool(references) and method == "index_timestep_zero"
        _hold_references_at_zero(module, still)
        times = torch.cat([timestep, torch.zeros_like(timestep)]) if still else timestep
        with embedded_exactly(module.get_submodule(TIMESTEP_EMBEDDER), times, scale=1000):
            (sample,) = module(
                hidden_states=tokens,
                encoder_hidden_states=context,
                encoder_hidden_states_mask=word_mask(given.get("attention_mask"), context, self.title),
                timestep=timestep,
                img_shapes=[grids] * x.shape[0],
                controlnet_block_samples=per_block(control.get("input"), config.num_layers, tokens),
                return_dict=False,
            )
        return unpack_frames(sample[:, : grids.tokens_of_target], PATCH, *x.shape[2:])


def _places(method: str, references: Sequence[torch.Tensor]) -> Iterator[Place]:
    if method in {"index", "index_timestep_zero"}:
        return place_by_index(len(references))
    if method == "negative_index":
        return place_by_index(len(references), step=-1.0)
    if method in {"offset", "uxo"}:  # this network knows no diagonal: ComfyUI stacks for both names
        return place_by_offset([(image.shape[-2], image.shape[-1]) for image in references], PATCH)
    raise UnsupportedRequestError(
        f"Qwen-Image cannot place reference latents by the method {method!r}.",
        hint="Use index, index_timestep_zero, negative_index or offset.",
    )


def _hold_references_at_zero(module: Any, wanted: bool) -> None:
    """Whether references are modulated as clean images: a file has its default, a request may differ."""
    for part in (module, *module.transformer_blocks):
        part.zero_cond_t = wanted
