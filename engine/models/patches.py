"""Latents to tokens and back, for families that pack square patches channel-first."""

from __future__ import annotations

import torch
from torch.nn import functional


def pack(latent: torch.Tensor, patch: int) -> torch.Tensor:
    """(B,C,H,W) to tokens (B, ceil(H/p)*ceil(W/p), C*p*p); a ragged edge is filled by wrapping around."""
    high, wide = -latent.shape[-2] % patch, -latent.shape[-1] % patch
    if high or wide:
        latent = functional.pad(latent, (0, wide, 0, high), mode="circular")
    batch, channels, height, width = latent.shape
    grid = latent.reshape(batch, channels, height // patch, patch, width // patch, patch)
    return grid.permute(0, 2, 4, 1, 3, 5).reshape(batch, -1, channels * patch * patch)


def unpack(tokens: torch.Tensor, patch: int, height: int, width: int) -> torch.Tensor:
    """The inverse of `pack`, cropped to (B,C,height,width)."""
    rows, columns = -(-height // patch), -(-width // patch)
    grid = tokens.reshape(tokens.shape[0], rows, columns, -1, patch, patch)
    latent = grid.permute(0, 3, 1, 4, 2, 5).reshape(tokens.shape[0], -1, rows * patch, columns * patch)
    return latent[..., :height, :width]
