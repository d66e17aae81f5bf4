"""Sequence parallel: tokens are cut on their way into a network's blocks and joined on their way out.

Everything is done by hooks, so the network stays as it is and taking them away undoes it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from .collectives import gather
from .mesh import Mesh
from .plans import Cut, Join, Mix, SequencePlan, parts
from .streams import Streams

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


def share_tokens(
    module: nn.Module, plan: SequencePlan, mesh: Mesh, streams: Streams
) -> list[RemovableHandle]:
    """Have each rank compute its shard of the tokens, within a SharedAttention of the same `streams`."""
    handles: list[RemovableHandle] = []
    for cut in plan.cuts:
        handles += _cut(module, cut, streams)
    for mix in plan.mixes:
        handles += _mix(module, mix, streams)
    for join in plan.joins:
        for _, part in parts(module, join.part):
            handles.append(part.register_forward_hook(_joining(join, mesh, streams)))
    return handles


def _cut(module: nn.Module, cut: Cut, streams: Streams) -> list[RemovableHandle]:
    if not cut.argument:
        return [
            part.register_forward_hook(lambda _, _inputs, output: _piece(output, cut, streams))
            for _, part in parts(module, cut.part)
        ]
    return [
        part.register_forward_pre_hook(_cutting(part, cut, streams), with_kwargs=True)
        for _, part in parts(module, cut.part)
    ]


def _cutting(part: nn.Module, cut: Cut, streams: Streams) -> Callable[..., Arguments]:
    signature = inspect.signature(type(part).forward)

    def hook(called: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments:
        bound = signature.bind(called, *args, **kwargs)
        if cut.argument in bound.arguments:
            bound.arguments[cut.argument] = _piece(bound.arguments[cut.argument], cut, streams)
        return bound.args[1:], bound.kwargs

    return hook


def _piece(value: Any, cut: Cut, streams: Streams) -> Any:
    if isinstance(value, torch.Tensor):
        return streams.cut(value, cut.stream, cut.dim) if value.ndim > cut.dim else value
    if isinstance(value, list | tuple):
        return type(value)(
            _piece(item, cut, streams) if cut.item in {None, number} else item
            for number, item in enumerate(value)
        )
    return value


def _mix(module: nn.Module, mix: Mix, streams: Streams) -> list[RemovableHandle]:
    handles = []
    for _, part in parts(module, mix.part, mix.optional):
        handles.append(part.register_forward_pre_hook(_mixing(mix, streams), with_kwargs=True))
        handles.append(part.register_forward_hook(lambda *_: _rest(streams)))
    return handles


def _mixing(mix: Mix, streams: Streams) -> Callable[..., Arguments]:
    def hook(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments:
        streams.mixed = mix.streams
        words = kwargs.get(mix.word_mask)
        if words is not None:
            others = sum(streams.lengths[stream] for stream in mix.streams[1:])
            rest = words.new_ones((words.shape[0], others))
            streams.mask = torch.cat([words, rest], dim=1)[:, None, None]
            kwargs = kwargs | {mix.word_mask: None}
        return args, kwargs

    return hook


def _rest(streams: Streams) -> None:
    streams.mixed, streams.mask = (), None


def _joining(join: Join, mesh: Mesh, streams: Streams) -> Callable[..., torch.Tensor]:
    def hook(_: nn.Module, _inputs: Any, output: torch.Tensor) -> torch.Tensor:
        return joined(output, join.stream, join.dim, mesh, streams)

    return hook


def joined(piece: torch.Tensor, stream: str, dim: int, mesh: Mesh, streams: Streams) -> torch.Tensor:
    """All of `stream`, on every rank, from this rank's `piece` of it."""
    sizes, width = streams.sizes(stream), streams.ulysses
    places = [sizes[first : first + width] for first in range(0, len(sizes), width)]
    if streams.ulysses > 1:
        piece = gather(piece, places[streams.ring_place], dim, mesh.group("ulysses"))
    if streams.ring > 1:
        piece = gather(piece, [sum(place) for place in places], dim, mesh.group("ring"))
    return piece
