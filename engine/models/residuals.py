"""ControlNet residuals, from ComfyUI's ragged lists to one tensor per block."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.nn import functional

from ...protocol.errors import InvalidRequestError, UnsupportedRequestError

LISTS = frozenset({"input", "output", "middle"})


def check_lists(control: Mapping[str, Any], family: str) -> None:
    """Refuse lists that no transformer reads. ComfyUI sends "middle" too, and its transformers ignore it."""
    for name, residuals in control.items():
        if name not in LISTS and residuals is not None and len(residuals) > 0:
            raise UnsupportedRequestError(f"{family} does not know the control list {name!r}.")


def per_block(residuals: Sequence[Any] | None, blocks: int, like: torch.Tensor) -> list[torch.Tensor] | None:
    """One residual per block, each (B or 1, N, D) or a scalar zero; None when nothing is to be added.

    `residuals[i]` belongs to block i: the list may be short, long or hold None, and a residual may cover only
    the first tokens. `like` (B,N,...) gives the number of tokens and the dtype.
    """
    given = list(residuals or ())[:blocks]
    if all(item is None for item in given):
        return None
    given += [None] * (blocks - len(given))
    # ComfyUI hands one tensor to several blocks.
    full = {id(item): _full(item, like) for item in given}
    return [full[id(item)] for item in given]


def _full(item: torch.Tensor | None, like: torch.Tensor) -> torch.Tensor:
    if item is None:
        return like.new_zeros(())
    if item.ndim != 3 or item.shape[1] > like.shape[1]:
        raise InvalidRequestError(
            f"A control residual of shape {list(item.shape)} does not fit {like.shape[1]} image tokens.",
            hint="Use a ControlNet made for this model, at the size of the image.",
        )
    missing = like.shape[1] - item.shape[1]
    # Padding copies, and copying is what a set of residuals costs.
    return functional.pad(item.to(like), (0, 0, 0, missing)) if missing else item.to(like)
