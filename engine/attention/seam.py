"""Where chosen attention enters a network: each call of torch's own attention in a `with` goes through here.

So the networks stay as their authors wrote them, and what computes them is decided from outside. The function
is replaced by name: a torch function mode would do the same, at some microseconds for every other operation.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch.nn import functional

from .choice import Choice
from .kernels import torch_attention


class Attention(AbstractContextManager["Attention"]):
    """Within, attention drops masks that mask nothing and, without a mask, takes the fastest kernel.

    The choices outlive the `with`: use one object for all models of a device, so that a model gives the same
    numbers each time it is loaded. For one thread of a process at a time.
    """

    def __init__(self) -> None:
        self.choice = Choice()
        self._replaced: list[Callable[..., torch.Tensor]] = []
        self._masks: list[tuple[torch.Tensor, bool]] = []

    def __enter__(self) -> Attention:
        self._replaced.append(functional.scaled_dot_product_attention)
        functional.scaled_dot_product_attention = self._attend
        return self

    def __exit__(self, *exception: object) -> None:
        functional.scaled_dot_product_attention = self._replaced.pop()
        self._masks.clear()

    def _attend(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> torch.Tensor:
        if attn_mask is not None and self._masks_nothing(attn_mask):
            attn_mask = None
        if attn_mask is None and query.ndim == 4 and not (dropout_p or is_causal or enable_gqa):
            return self.choice.kernel(query, key, value)(query, key, value, scale)
        rest: dict[str, Any] = {"dropout_p": dropout_p, "is_causal": is_causal, "enable_gqa": enable_gqa}
        return torch_attention(query, key, value, attn_mask=attn_mask, scale=scale, **rest)

    def _masks_nothing(self, mask: torch.Tensor) -> bool:
        """Looked up once per mask and `with`: on a GPU the answer makes the host wait."""
        for seen, nothing in self._masks:
            if seen.data_ptr() == mask.data_ptr() and seen.shape == mask.shape:
                return nothing
        nothing = bool(mask.all() if mask.dtype == torch.bool else not mask.any())
        self._masks.append((mask, nothing))
        return nothing
