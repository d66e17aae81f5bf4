"""The ways a device has to compute softmax(q k^T) v: torch's fused ones, and the three steps written out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import torch
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

#: Torch's own, held here because `Attention` stands in its place while a network runs.
torch_attention = functional.scaled_dot_product_attention

#: (query (B,H,N,D), key (B,H,M,D), value (B,H,M,D), scale) to (B,H,N,D).
Kernel = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, "float | None"], torch.Tensor]

FUSED = "fused"
#: Bytes of scores that `explicit` holds at a time for each thread: what a processor's cache takes.
SCORES = 8 << 20


def fused(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float | None = None
) -> torch.Tensor:
    """Whichever of its own kernels torch takes."""
    return torch_attention(query, key, value, scale=scale)


def explicit(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float | None = None
) -> torch.Tensor:
    """Product, softmax, product, for as many queries at a time as `SCORES` bytes of scores allow."""
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    queries, keys, values = query.flatten(0, 1), key.flatten(0, 1).transpose(1, 2), value.flatten(0, 1)
    rows = max(1, SCORES * torch.get_num_threads() // (len(keys) * keys.shape[2] * query.itemsize))
    unread = query.new_empty(1, 1, 1)
    pieces = [
        torch.baddbmm(unread, piece, keys, beta=0, alpha=scale).softmax(-1) @ values
        for piece in torch.split(queries, rows, dim=1)
    ]
    result = pieces[0] if len(pieces) == 1 else torch.cat(pieces, dim=1)
    return result.view(query.shape[:3] + value.shape[3:])


def _only(
    backend: SDPBackend,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    scale: float | None = None,
) -> torch.Tensor:
    with sdpa_kernel(backend):
        return fused(query, key, value, scale)


def kernels_of(device: torch.device) -> Mapping[str, Kernel]:
    """Kernels by name, the one to prefer when there is little between them first.

    Some may raise RuntimeError at a dtype or shape they do not know.
    """
    if device.type == "cpu":
        return {FUSED: fused, "explicit": explicit}
    if device.type == "cuda":
        backends = {
            "cudnn": SDPBackend.CUDNN_ATTENTION,
            "flash": SDPBackend.FLASH_ATTENTION,
            "efficient": SDPBackend.EFFICIENT_ATTENTION,
        }
        return {FUSED: fused} | {name: partial(_only, backend) for name, backend in backends.items()}
    return {FUSED: fused}
