"""What surrounds the digits model in a graph: its prompts, and a pixel shuffle where others have a VAE."""

from __future__ import annotations

from functools import lru_cache

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor

from ...protocol.errors import InvalidRequestError
from .assets import CONDITIONING, LATENT_SHAPE, PICTURE_SIZE

_SHUFFLE = PICTURE_SIZE // LATENT_SHAPE[1]
_SCALE, _SHIFT = 0.3611, 0.1159
_EMPTY = 10


def prompt(digit: int | None) -> dict[str, Tensor]:
    """The conditioning of one digit, None for the empty prompt: `context` [1, 4, 64] and `y` [1, 32], fp32.

    The empty prompt is all zeros, so a zeroed-out conditioning is the same thing.
    """
    if digit is not None and digit not in range(10):
        raise InvalidRequestError(f"The digits model cannot draw {digit!r}.", hint="Ask for a digit, 0 to 9.")
    row = _EMPTY if digit is None else digit
    return {name: table[row : row + 1].clone() for name, table in _tables().items()}


def decode(latent: Tensor) -> Tensor:
    """Graph-space latents [B, 16, 8, 8] -> pictures [B, 32, 32] fp32 in [0, 1]."""
    _require(latent, LATENT_SHAPE, "latents")
    pixels = F.pixel_shuffle(to_model_space(latent.float()), _SHUFFLE)[:, 0]
    return (pixels * 0.5 + 0.5).clamp(0, 1)


def encode(pictures: Tensor) -> Tensor:
    """Pictures [B, 32, 32] in [0, 1] -> graph-space latents [B, 16, 8, 8] fp32; `decode` takes them back."""
    _require(pictures, (PICTURE_SIZE, PICTURE_SIZE), "pictures")
    return to_graph_space(F.pixel_unshuffle((pictures.float() * 2 - 1)[:, None], _SHUFFLE))


def to_model_space(latent: Tensor) -> Tensor:
    """FLUX.1's latent format on the way into the model."""
    return (latent - _SHIFT) * _SCALE


def to_graph_space(latent: Tensor) -> Tensor:
    """FLUX.1's latent format on the way out of the model."""
    return latent / _SCALE + _SHIFT


@lru_cache(maxsize=1)
def _tables() -> dict[str, Tensor]:
    return {name: table.to(torch.float32) for name, table in load_file(CONDITIONING).items()}


def _require(tensor: Tensor, shape: tuple[int, ...], what: str) -> None:
    if tensor.ndim != len(shape) + 1 or tuple(tensor.shape[1:]) != shape:
        expected, got = ("x".join(map(str, s)) for s in (shape, tensor.shape[1:]))
        raise InvalidRequestError(
            f"The digits model's {what} are batches of {expected}, not of {got}.",
            hint="Its pictures are 32x32 pixels and its latents 8x8 of 16 channels; use these sizes.",
        )
