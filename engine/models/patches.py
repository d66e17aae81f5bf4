"""Latents to tokens and back, for families that pack square patches channel-first."""

from __future__ import annotations

import torch
from torch.nn import functional


def completed(latent: torch.Tensor, patch: int) -> torch.Tensor:
    """(B,C,[T,]H,W) with height and width made multiples of `patch` by wrapping around."""
    high, wide = -latent.shape[-2] % patch, -latent.shape[-1] % patch
    if not (high or wide):
        return latent
    flat = functional.pad(latent.flatten(1, -3), (0, wide, 0, high), mode="circular")
    return flat.reshape(*latent.shape[:-2], *flat.shape[-2:])


def pack(latent: torch.Tensor, patch: int) -> torch.Tensor:
    """(B,C,H,W) to tokens (B, ceil(H/p)*ceil(W/p), C*p*p)."""
    latent = completed(latent, patch)
    batch, channels, height, width = latent.shape
    grid = latent.reshape(batch, channels, height // patch, patch, width // patch, patch)
    return grid.permute(0, 2, 4, 1, 3, 5).reshape(batch, -1, channels * patch * patch)


def unpack(tokens: torch.Tensor, patch: int, height: int, width: int) -> torch.Tensor:
    """The inverse of `pack`, cropped to (B,C,height,width)."""
    rows, columns = -(-height // patch), -(-width // patch)
    grid = tokens.reshape(tokens.shape[0], rows, columns, -1, patch, patch)
    latent = grid.permute(0, 3, 1, 4, 2, 5).reshape(tokens.shape[0], -1, rows * patch, columns * patch)
    return latent[..., :height, :width]


def pack_frames(latent: torch.Tensor, patch: int) -> torch.Tensor:
    """(B,C,T,H,W) to tokens (B, T*rows*columns, C*p*p), each frame packed for itself."""
    return torch.cat([pack(frame, patch) for frame in latent.unbind(2)], dim=1)


def unpack_frames(tokens: torch.Tensor, patch: int, frames: int, height: int, width: int) -> torch.Tensor:
    """The inverse of `pack_frames`, cropped to (B,C,T,height,width)."""
    parts = tokens.chunk(frames, dim=1)
    return torch.stack([unpack(part, patch, height, width) for part in parts], dim=2)
