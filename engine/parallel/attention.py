"""Attention over tokens that are shared out, entering by the seam where a device's kernels are chosen.

Ulysses (https://arxiv.org/abs/2309.14509): each rank trades its tokens' heads for all tokens of some heads.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

import torch
from torch.nn import functional

from ...protocol.errors import UnsupportedRequestError
from .collectives import exchange, shares
from .mesh import Mesh
from .ring import ring_attention
from .streams import Streams, by_shard, by_stream


class SharedAttention(AbstractContextManager["SharedAttention"]):
    """Within, attention that mixes cut streams reaches the tokens of all ranks; any other stays as it was.

    `local` is the seam it stands in: entered first, and asked for all that one device can do.
    """

    def __init__(self, local: AbstractContextManager[object], mesh: Mesh, streams: Streams) -> None:
        self.local = local
        self.mesh = mesh
        self.streams = streams
        self._kernels: list[Callable[..., torch.Tensor]] = []

    def __enter__(self) -> SharedAttention:
        self.local.__enter__()
        self._kernels.append(functional.scaled_dot_product_attention)
        functional.scaled_dot_product_attention = self._attend
        return self

    def __exit__(self, *exception: object) -> None:
        functional.scaled_dot_product_attention = self._kernels.pop()
        self.local.__exit__(*exception)  # type: ignore[arg-type]

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
        if not self.streams.mixed:
            return self._kernels[-1](
                query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
            )
        assert not (dropout_p or is_causal or enable_gqa)
        mask = attn_mask if self.streams.mask is None else self.streams.mask
        if mask is not None and mask.ndim == 4 and mask.shape[1] != 1:
            raise UnsupportedRequestError(
                f"An attention mask with one part for each of {mask.shape[1]} heads cannot be shared out.",
                hint="Use a layout without ring and ulysses.",
            )
        if self.streams.ulysses == 1:
            return self._over_places(query, key, value, mask, scale)
        return self._by_heads(query, key, value, mask, scale)

    def _by_heads(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        mask: torch.Tensor | None,
        scale: float | None,
    ) -> torch.Tensor:
        streams, group = self.streams, self.mesh.group("ulysses")
        rows, count, tokens, width = query.shape
        heads = shares(count, streams.ulysses)
        mine = heads[streams.ulysses_place]
        lengths = streams.pieces(streams.ring_place)
        there = [sum(sizes[place] for sizes in lengths) for place in range(streams.ulysses)]
        assert there[streams.ulysses_place] == tokens, (there, tokens)
        sent = torch.stack([query, key, value]).split_with_sizes(heads, dim=2)
        received = exchange(sent, [(3, rows, mine, size, width) for size in there], group)
        all_tokens = by_stream(received, lengths, 3)
        mixed = self._over_places(all_tokens[0], all_tokens[1], all_tokens[2], mask, scale)
        returned = by_shard(mixed, lengths, 2)
        return torch.cat(exchange(returned, [(rows, size, tokens, width) for size in heads], group), dim=1)

    def _over_places(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        mask: torch.Tensor | None,
        scale: float | None,
    ) -> torch.Tensor:
        if self.streams.ring > 1:
            return ring_attention(query, key, value, mask, scale, self.streams, self.mesh.group("ring"))
        if not query.numel():
            return query
        return self._kernels[-1](query, key, value, mask, scale=scale)
