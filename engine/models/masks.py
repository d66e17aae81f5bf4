"""Attention masks over text and image tokens together."""

from __future__ import annotations

import torch

from ...protocol.errors import InvalidRequestError


def joint_mask(mask: torch.Tensor | None, tokens: int, family: str) -> torch.Tensor | None:
    """ComfyUI's mask (N,N), (B,N,N) or (B,1,N,N), bool or additive, as (B or 1, 1, N, N)."""
    if mask is None:
        return None
    if mask.ndim == 2:
        mask = mask[None]
    if mask.ndim == 3:
        mask = mask[:, None]
    if (
        mask.ndim != 4
        or mask.shape[-1] != tokens
        or not (mask.dtype == torch.bool or mask.is_floating_point())
    ):
        raise InvalidRequestError(
            f"{family} has {tokens} tokens here; an attention mask of shape {list(mask.shape)} does not fit.",
            hint="A mask for text and image cannot be combined with reference latents.",
        )
    return mask
