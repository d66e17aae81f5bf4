"""Tensor parallel (https://arxiv.org/abs/1909.08053): each rank has some heads and hidden channels.

Weights that are cut do not come back: another layout needs them read again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

from ...protocol.errors import UnsupportedRequestError
from .mesh import Mesh
from .plans import Packing, TensorPlan, parts

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


class RowLinear(nn.Linear):
    """A linear that has some of its input channels; the ranks' results are added up, and the bias once."""

    def __init__(self, weight: torch.Tensor, bias: nn.Parameter | None, group: ProcessGroup) -> None:
        super().__init__(weight.shape[1], weight.shape[0], bias=False, device="meta")
        self.weight = _fixed(weight)
        self.register_parameter("bias", bias)
        self.group = group

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result = functional.linear(x, self.weight)
        dist.all_reduce(result, group=self.group)
        bias: nn.Parameter | None = self.bias
        return result if bias is None else result + bias


class SharedNorm(nn.Module):
    """RMS norm (https://arxiv.org/abs/1910.07467) over channels of all ranks, of which this one has some."""

    def __init__(self, stock: nn.RMSNorm, weight: torch.Tensor, group: ProcessGroup) -> None:
        super().__init__()
        self.weight = _fixed(weight)
        self.eps = stock.eps
        self.width = stock.normalized_shape[-1]
        self.group = group

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        squares = x.float().square().sum(-1, keepdim=True)
        dist.all_reduce(squares, group=self.group)
        eps = torch.finfo(x.dtype).eps if self.eps is None else self.eps
        return (x.float() * torch.rsqrt(squares / self.width + eps) * self.weight.float()).type_as(x)


def check_weights(module: nn.Module, plan: TensorPlan, ranks: int, title: str) -> None:
    """Raise UnsupportedRequestError unless all that `share_weights` will cut can be cut."""
    for cuts, dim in ((plan.columns, 0), (plan.rows, 1)):
        for name, linear, packing in _linears(module, cuts):
            if type(linear) is not nn.Linear:
                raise UnsupportedRequestError(
                    f"{title} with tp {ranks}: the layer {name!r} is a {type(linear).__name__}, "
                    f"which cannot be cut.",
                    hint="Use the bf16 file of the model, or ulysses in place of tp.",
                )
            for size in _blocks(linear, packing, dim):
                if size % ranks:
                    raise UnsupportedRequestError(
                        f"{title} with tp {ranks}: {size} channels of {name!r} do not divide by {ranks}.",
                        hint="Use a smaller tp, or ulysses in its place.",
                    )


def share_weights(module: nn.Module, plan: TensorPlan, mesh: Mesh) -> None:
    """Cut the weights in place; this rank keeps its part alone."""
    group, place, ranks = mesh.group("tp"), mesh.place("tp"), mesh.layout.tp
    for _, linear, packing in list(_linears(module, plan.columns)):
        blocks = _blocks(linear, packing, 0)
        linear.weight = _fixed(_part(linear.weight, blocks, 0, place, ranks))
        if linear.bias is not None:
            linear.bias = _fixed(_part(linear.bias, blocks, 0, place, ranks))
        linear.out_features = linear.weight.shape[0]
    for name, linear, packing in list(_linears(module, plan.rows)):
        weight = _part(linear.weight, _blocks(linear, packing, 1), 1, place, ranks)
        _replace(module, name, RowLinear(weight, linear.bias, group))
    for name, norm in list(parts(module, plan.norms) if plan.norms else ()):
        assert isinstance(norm, nn.RMSNorm)
        weight = _part(norm.weight, [len(norm.weight)], 0, place, ranks)
        _replace(module, name, SharedNorm(norm, weight, group))
    for _, attention in list(parts(module, plan.counted) if plan.counted else ()):
        counting: Any = attention
        counting.heads //= ranks
    for _, rotary in list(parts(module, plan.rotary) if plan.rotary else ()):
        rotary.register_forward_hook(lambda _, _inputs, output: _channels(output, place, ranks))


def _channels(waves: Sequence[torch.Tensor], place: int, ranks: int) -> tuple[torch.Tensor, ...]:
    return tuple(wave.chunk(ranks, dim=-1)[place] for wave in waves)


def _linears(module: nn.Module, cuts: Any) -> Iterator[tuple[str, nn.Linear, Packing | None]]:
    for pattern, packing in cuts.items():
        for name, linear in parts(module, pattern):
            # Of another class only until `check_weights` has seen it.
            part: Any = linear
            yield name, part, packing


def _blocks(linear: nn.Linear, packing: Packing | None, dim: int) -> Sequence[int]:
    return packing(linear) if packing else [linear.weight.shape[dim]]


def _part(whole: torch.Tensor, blocks: Sequence[int], dim: int, place: int, ranks: int) -> torch.Tensor:
    """Of each block this place's share, one after the other; a copy, so that the whole can be freed."""
    return torch.cat(
        [block.chunk(ranks, dim)[place] for block in whole.split_with_sizes(list(blocks), dim)], dim
    ).clone()


def _fixed(tensor: torch.Tensor) -> nn.Parameter:
    return nn.Parameter(tensor, requires_grad=False)


def _replace(module: nn.Module, name: str, part: nn.Module) -> None:
    parent, _, leaf = name.rpartition(".")
    setattr(module.get_submodule(parent), leaf, part)
