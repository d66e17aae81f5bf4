"""Parts of a request that every family checks the same way before it computes."""

from __future__ import annotations

import torch

from ...protocol.errors import InvalidRequestError
from .family import Conditioning


def check_channels(x: torch.Tensor, channels: int, title: str, dims: int = 4) -> None:
    """Refuse a latent that is not (B,channels,H,W), or (B,channels,T,H,W) with 5 `dims`."""
    if x.ndim != dims or x.shape[1] != channels:
        raise InvalidRequestError(
            f"This {title} reads latents of {channels} channels, the request has {list(x.shape)}.",
            hint="Use this model's own empty latent, VAE and, for fill, canny or depth, conditioning node.",
        )


def text_of(given: Conditioning, width: int, title: str) -> torch.Tensor:
    """The encoded prompt (B,L,width)."""
    context = given.get("context")
    if not isinstance(context, torch.Tensor) or context.ndim != 3 or context.shape[-1] != width:
        found = list(context.shape) if isinstance(context, torch.Tensor) else context
        raise InvalidRequestError(
            f"This {title} reads text of width {width}, the request has {found}.",
            hint="Encode the prompt with the text encoders that belong to this model.",
        )
    return context


def texts_of(given: Conditioning, width: int, title: str) -> list[torch.Tensor]:
    """The encoded prompt of each row (L,width), whether they came as one tensor or as a list of rows."""
    rows = given.get("context")
    if not isinstance(rows, list):
        return list(text_of(given, width, title))
    return [text_of({"context": row[None]}, width, title)[0] for row in rows]


def pooled_text_of(given: Conditioning, width: int, x: torch.Tensor, title: str) -> torch.Tensor:
    """The pooled prompt (B,width): zeros if there is none, and only its first columns if it is wider."""
    pooled = given.get("y")
    if pooled is None:
        return x.new_zeros((x.shape[0], width))
    if pooled.ndim != 2 or pooled.shape[1] < width:
        raise InvalidRequestError(
            f"This {title} reads a pooled prompt of width {width}, the request has {list(pooled.shape)}.",
            hint="Encode the prompt with the text encoders that belong to this model.",
        )
    narrowed: torch.Tensor = pooled[:, :width]
    return narrowed


def references_of(given: Conditioning, x: torch.Tensor) -> list[torch.Tensor]:
    """The reference latents, each (B,C,[T,]h,w) with the batch and channels of `x`."""
    return [_like_target(reference, x) for reference in given.get("ref_latents") or ()]


def _like_target(reference: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    rows, channels = x.shape[:2]
    if reference.ndim != x.ndim or reference.shape[0] not in {1, rows} or reference.shape[1] != channels:
        raise InvalidRequestError(
            f"A reference latent of shape {list(reference.shape)} does not go with a latent {list(x.shape)}.",
            hint="Encode the reference with the model's own VAE, one picture at a time.",
        )
    return reference.expand(rows, *reference.shape[1:])
