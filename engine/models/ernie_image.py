"""ERNIE-Image, in the layout of the published files, whose key names are diffusers' own.

Network: https://huggingface.co/baidu/ERNIE-Image, run by diffusers' ErnieImageTransformer2DModel.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence

from ...protocol.errors import UnsupportedModelError
from . import keymap, transformers
from .contents import Contents
from .family import Conditioning, Config, Shapes
from .hooks import Inputs
from .keymap import Copy
from .positions import Rope
from .requests import check_channels, texts_of

HEAD_DIM = 128
AXES = (32, 48, 48)
THETA = 256
QUERY_NORM = "layers.0.self_attention.norm_q.weight"


class ErnieImage:
    name = "ernie_image"
    title = "ERNIE-Image"
    transformer = "ErnieImageTransformer2DModel"
    conditioning = frozenset({"context", "rope_options"})
    unread = frozenset[str]()
    # The network masks the text of each row beyond its own length.
    ragged = frozenset({"context"})

    def canonical(self, key: str) -> str:
        return key

    def matches(self, contents: Contents) -> bool:
        return all(map(contents.has, ("layers.0.mlp.linear_fc2.", "adaLN_modulation.1.", "x_embedder.proj.")))

    def config(self, contents: Contents) -> Config:
        hidden, in_channels, patch, _ = contents.shape("x_embedder.proj.weight", 4)
        (head_dim,) = contents.shape(QUERY_NORM, 1)
        if head_dim != HEAD_DIM or hidden % head_dim or patch != 1:
            raise UnsupportedModelError(
                f"{contents.path}: an ERNIE-Image of width {hidden}, heads {head_dim}, patches {patch}; "
                f"only heads of {HEAD_DIM} and patches of 1 are known.",
            )
        return {
            "hidden_size": hidden,
            "num_attention_heads": hidden // head_dim,
            "num_layers": contents.count("layers."),
            "ffn_hidden_size": contents.shape("layers.0.mlp.gate_proj.weight", 2)[0],
            "in_channels": in_channels,
            "out_channels": contents.shape("final_linear.weight", 2)[0],
            "patch_size": patch,
            # Without it the text would be as wide as the network: no published file is so, but one that lost
            # the tensor would look it.
            "text_in_dim": contents.shape("text_proj.weight", 2)[1],
            "rope_theta": THETA,
            "rope_axes_dim": AXES,
        }

    def build(self, config: Config) -> nn.Module:
        module: Any = transformers.build(self.transformer, config)
        for layer in module.layers:
            layer.register_forward_pre_hook(_modulate_once)
        result: nn.Module = module
        return result

    def key_map(self, shapes: Shapes) -> Iterator[Copy]:
        return keymap.identity(shapes)

    def predict(
        self, module: nn.Module, x: torch.Tensor, timestep: torch.Tensor, given: Conditioning
    ) -> torch.Tensor:
        """`timestep` is sigma * 1000, as ComfyUI's sampling object for this family delivers it."""
        config: Any = module.config
        check_channels(x, config.in_channels, self.title)
        context, lengths = _padded(texts_of(given, config.text_in_dim, self.title), x.device)
        rope = Rope.parse(given.get("rope_options"), self.title)
        with _moved_image(module, rope, x.shape[-2] * x.shape[-1]):
            (sample,) = module(
                hidden_states=x, timestep=timestep, text_bth=context, text_lens=lengths, return_dict=False
            )
        result: torch.Tensor = sample
        return result


def _padded(texts: list[torch.Tensor], device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Texts (L,D) as one (B,longest L,D), and their lengths (B,)."""
    lengths = [len(text) for text in texts]
    if len(set(lengths)) == 1:
        # Filled in on the device: a list would be copied there, at every step.
        return torch.stack(texts), torch.full((len(texts),), lengths[0], dtype=torch.long, device=device)
    return pad_sequence(texts, batch_first=True), torch.tensor(lengths, device=device)


def _modulate_once(_: nn.Module, inputs: Inputs) -> Inputs:
    """Modulation (1,B,D) in place of copies (N,B,D), one for each token, which every layer would convert."""
    x, rotary, modulation, *rest = inputs
    return (x, rotary, [part[:1] for part in modulation], *rest)


@contextmanager
def _moved_image(module: nn.Module, rope: Rope, image_tokens: int) -> Iterator[None]:
    """For one call, stretch and shift the ids of the image tokens, which come first in (B,N,3)."""
    if rope.is_identity:
        yield
        return

    def move(_: nn.Module, args: tuple[torch.Tensor]) -> tuple[torch.Tensor]:
        scale = args[0].new_tensor((1.0, rope.scale_y, rope.scale_x))
        shift = args[0].new_tensor((rope.shift_t, rope.shift_y, rope.shift_x))
        image, text = args[0][:, :image_tokens], args[0][:, image_tokens:]
        return (torch.cat([image * scale + shift, text], dim=1),)

    handle = module.get_submodule("pos_embed").register_forward_pre_hook(move)
    try:
        yield
    finally:
        handle.remove()
