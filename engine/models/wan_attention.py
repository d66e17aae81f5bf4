"""Wan's self-attention as diffusers computes it, but for the turning of queries and keys.

diffusers turns even and odd channels one after the other into a third tensor; as complex numbers they are
turned in one pass.
"""

from __future__ import annotations

from typing import Any

import torch

from .rotary import rotate


class SelfAttention:
    """A processor of diffusers' WanAttention, with the two attributes that diffusers sets from outside."""

    _attention_backend: Any = None
    _parallel_config: Any = None

    def __call__(
        self,
        attn: Any,
        hidden_states: torch.Tensor,
        _words: None = None,
        attention_mask: torch.Tensor | None = None,
        rotary_emb: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Tokens (B,N,D) to tokens; `rotary_emb` complex (N, head_dim/2)."""
        from diffusers.models.attention_dispatch import dispatch_attention_fn

        query = attn.norm_q(attn.to_q(hidden_states)).unflatten(2, (attn.heads, -1))
        key = attn.norm_k(attn.to_k(hidden_states)).unflatten(2, (attn.heads, -1))
        value = attn.to_v(hidden_states).unflatten(2, (attn.heads, -1))
        if rotary_emb is not None:
            query, key = rotate(query, rotary_emb), rotate(key, rotary_emb)
        mixed = dispatch_attention_fn(
            query,
            key,
            value,
            attn_mask=attention_mask,
            backend=self._attention_backend,
            parallel_config=self._parallel_config,
        )
        result: torch.Tensor = attn.to_out[0](mixed.flatten(2, 3).type_as(query))
        return result
