"""Ring attention (https://arxiv.org/abs/2310.01889): keys and values go round, partial results are merged.

The merge is exact: each part brings the logarithm of its softmax's denominator along.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from .collectives import pass_on
from .streams import Streams

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

Part = tuple[torch.Tensor, torch.Tensor]
#: Queries whose scores are held at once where no kernel tells the denominators.
QUERIES = 1024


def ring_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    scale: float | None,
    streams: Streams,
    group: ProcessGroup,
) -> torch.Tensor:
    """Attention of this place's queries (B,H,n,D) over the keys of all places; (B,H,n,D).

    `mask` covers all tokens of the mixed streams, broadcast as torch's attention would.
    """
    here, places = streams.ring_place, streams.ring
    if mask is not None:
        mask = streams.of_place(mask, -2, here)
    carried = torch.stack([key, value])
    result: Part | None = None
    for step in range(places):
        source, following = (here - step) % places, (here - step - 1) % places
        arriving, works = carried, list[dist.Work]()
        if step < places - 1:
            shape = (*carried.shape[:3], streams.tokens(following), carried.shape[-1])
            arriving, works = pass_on(carried, shape, group)
        part_mask = None if mask is None else streams.of_place(mask, -1, source)
        if carried.shape[3] and query.numel():
            part = attend(query, carried[0], carried[1], part_mask, scale)
            result = part if result is None else merge(result, part)
        for work in works:
            work.wait()
        carried = arriving
    return query if result is None else result[0].type_as(query)


def merge(one: Part, two: Part) -> Part:
    """Attention over the keys of both: outputs (B,H,N,D) fp32, log-denominators (B,H,N) fp32.

    -inf says that a part had nothing to attend to.
    """
    both = torch.logaddexp(one[1], two[1])
    weights = [torch.exp(part[1] - both).nan_to_num(0.0)[..., None] for part in (one, two)]
    return one[0] * weights[0] + two[0] * weights[1], both


def attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    scale: float | None,
) -> Part:
    """Attention and its log-denominators, both fp32, by a fused kernel where one tells them."""
    if mask is None and query.device.type == "cpu":
        kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu  # noqa: SLF001
        output, sums = kernel(query, key, value, 0.0, False, scale=scale)
        return output.float(), sums.float()
    if mask is None and query.device.type == "cuda" and query.dtype in {torch.float16, torch.bfloat16}:
        kernel = torch.ops.aten._scaled_dot_product_flash_attention  # noqa: SLF001
        output, sums, *_ = kernel(query, key, value, 0.0, False, False, scale=scale)
        return output.float(), sums.float()
    return attend_plainly(query, key, value, mask, scale)


def attend_plainly(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    scale: float | None,
) -> Part:
    """The same by its definition, some queries at a time; a query that may see nothing gives 0."""
    scale = scale or 1.0 / math.sqrt(query.shape[-1])
    bias = None if mask is None else _additive(mask)
    outputs, sums = [], []
    for start in range(0, query.shape[-2], QUERIES):
        scores = (query[..., start : start + QUERIES, :].float() * scale) @ key.float().mT
        if bias is not None:
            scores = scores + (bias if bias.shape[-2] == 1 else bias[..., start : start + QUERIES, :])
        outputs.append(torch.softmax(scores, dim=-1).nan_to_num(0.0) @ value.float())
        sums.append(torch.logsumexp(scores, dim=-1))
    return torch.cat(outputs, dim=-2), torch.cat(sums, dim=-1)


def _additive(mask: torch.Tensor) -> torch.Tensor:
    if mask.dtype != torch.bool:
        return mask.float()
    return torch.zeros(mask.shape, device=mask.device).masked_fill(~mask, -math.inf)
