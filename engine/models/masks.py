"""Attention masks: of the words, and over text and image tokens together."""

from __future__ import annotations

import torch

from ...protocol.errors import InvalidRequestError, UnsupportedRequestError


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


def word_mask(mask: torch.Tensor | None, context: torch.Tensor, family: str) -> torch.Tensor | None:
    """ComfyUI's mask of the words, 1 for those that count, as bool (B,L) for `context` (B,L,D)."""
    if mask is None:
        return None
    rows, words = context.shape[:2]
    if mask.is_floating_point():
        raise UnsupportedRequestError(
            f"{family} reads a text mask of whole numbers, the request's is {mask.dtype}.",
            hint="Remove the node that weighs the attention mask, or sample with ComfyUI's own loader.",
        )
    if mask.ndim != 2 or mask.shape[0] not in {1, rows} or mask.shape[1] != words:
        raise InvalidRequestError(
            f"{family} has {words} words here; a text mask of shape {list(mask.shape)} does not fit.",
            hint="Encode the prompt with the text encoders that belong to this model.",
        )
    return mask.bool().expand(rows, words)
