"""Exchanges of pieces of unequal size, whose sizes every rank knows beforehand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch.nn import functional

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

Shape = Sequence[int]


def shares(total: int, parts: int) -> list[int]:
    """Sizes of `parts` pieces of `total`, the larger ones first; some are 0 when there are too few."""
    return [total // parts + (part < total % parts) for part in range(parts)]


def exchange(
    pieces: Sequence[torch.Tensor], shapes: Sequence[Shape], group: ProcessGroup
) -> list[torch.Tensor]:
    """Send `pieces[i]` to rank i of the group; what each rank sent here, in `shapes`."""
    sent = torch.cat([piece.reshape(-1) for piece in pieces])
    counts = [torch.Size(shape).numel() for shape in shapes]
    received = sent.new_empty(sum(counts))
    dist.all_to_all_single(received, sent, counts, [piece.numel() for piece in pieces], group=group)
    return [part.view(*shape) for part, shape in zip(received.split_with_sizes(counts), shapes, strict=True)]


def gather(piece: torch.Tensor, sizes: Sequence[int], dim: int, group: ProcessGroup) -> torch.Tensor:
    """The pieces of all ranks along `dim`, `sizes[i]` long on rank i, as one tensor.

    Collectives want equal sizes, so the shorter ones travel filled up and are cut again.
    """
    longest = max(sizes)
    filling = [0, 0] * (piece.ndim - 1 - dim % piece.ndim) + [0, longest - piece.shape[dim]]
    whole = functional.pad(piece, filling).contiguous()
    received = [torch.empty_like(whole) for _ in sizes]
    dist.all_gather(received, whole, group=group)
    return torch.cat([part.narrow(dim, 0, size) for part, size in zip(received, sizes, strict=True)], dim)


def pass_on(tensor: torch.Tensor, shape: Shape, group: ProcessGroup) -> tuple[torch.Tensor, list[dist.Work]]:
    """Start to send `tensor` to the next rank of the ring; what comes from the one before, in `shape`.

    What comes may be read once the works are waited for.
    """
    here, ranks = dist.get_rank(group), dist.get_world_size(group)
    received = tensor.new_empty(tuple(shape))
    sending = dist.get_global_rank(group, (here + 1) % ranks)
    receiving = dist.get_global_rank(group, (here - 1) % ranks)
    steps = []
    if tensor.numel():
        steps.append(dist.P2POp(dist.isend, tensor, sending, group))
    if received.numel():
        steps.append(dist.P2POp(dist.irecv, received, receiving, group))
    return received, dist.batch_isend_irecv(steps) if steps else []
