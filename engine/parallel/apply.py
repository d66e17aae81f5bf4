"""Share a loaded model out over the ranks of a mesh, and take that back."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.hooks import RemovableHandle

from ...protocol.errors import InvalidRequestError, UnsupportedRequestError
from ..models.family import Conditioning, Family
from ..models.model import Model
from .attention import SharedAttention
from .families import PLANS
from .layout import Layout, dividing
from .mesh import Mesh
from .plans import Plan
from .rows import Rows
from .sequence import share_tokens
from .streams import Streams
from .tensor import check_weights, share_weights

Row = TypeVar("Row")


@dataclass(frozen=True, eq=False)
class Before:
    """What a model was before it was shared out."""

    adapter: Family
    attention: AbstractContextManager[object]
    handles: Sequence[RemovableHandle]


class SharedAdapter:
    """A family's adapter, called with this rank's rows; in all else the one it stands for."""

    def __init__(self, before: Before, mesh: Mesh, streams: Streams) -> None:
        self.before = before
        self.mesh = mesh
        self.streams = streams

    def __getattr__(self, name: str) -> Any:
        return getattr(self.before.adapter, name)

    def predict(
        self, module: nn.Module, x: torch.Tensor, timestep: torch.Tensor, given: Conditioning
    ) -> torch.Tensor:
        """As of a Family; every rank of the replica is given the same call, and gets the whole answer."""
        rows = Rows(len(x), self.mesh)
        self.streams.forget()
        try:
            if not rows.are_shared:
                return rows.the_first(self.before.adapter.predict(module, x, timestep, given))
            part = self.before.adapter.predict(module, rows.of(x), rows.of(timestep), rows.of(given))
        finally:
            self.streams.forget()
        return rows.all(part)


def parallelize(model: Model, mesh: Mesh, layout: Layout) -> None:
    """Share `model` out as `layout` says; all ranks of the mesh do so together.

    Axes are those of the mesh, or 1 where a model makes no use of one. Raises UnsupportedRequestError before
    anything is altered, naming family and layout and what would work.
    """
    if isinstance(model.adapter, SharedAdapter):
        raise InvalidRequestError(
            f"This {model.adapter.title} is shared out already.", hint="Undo that first."
        )
    _check_axes(mesh, layout)
    mesh = Mesh(layout, mesh.devices)
    plan = plan_of(model.adapter)
    if layout.tp > 1:
        check(model.module, model.adapter.title, plan, layout)
        share_weights(model.module, plan.tensor, mesh)
    _share(model, mesh, plan)


def rearrange(model: Model, mesh: Mesh, layout: Layout) -> None:
    """Give a model that is shared out another layout, in place, or its own again; all ranks do so together.

    Raises UnsupportedRequestError for another `tp`: this rank has only its part of the weights.
    """
    shared: Any = model.adapter
    if not isinstance(shared, SharedAdapter):
        parallelize(model, mesh, layout)
    elif layout.tp != shared.mesh.layout.tp:
        raise _is_cut(shared)
    elif layout != shared.mesh.layout:
        _check_axes(mesh, layout)
        _unshare(model, shared)
        _share(model, Mesh(layout, mesh.devices), plan_of(model.adapter))


def undo(model: Model) -> None:
    """Make `model` one device's again, in place.

    Raises UnsupportedRequestError after tensor parallel: this rank has only a part of the weights.
    """
    shared: Any = model.adapter
    if not isinstance(shared, SharedAdapter):
        return
    if shared.mesh.layout.tp > 1:
        raise _is_cut(shared)
    _unshare(model, shared)


def is_shared(model: Model) -> bool:
    return isinstance(model.adapter, SharedAdapter)


def own_rows(model: Model, rows: Sequence[Row]) -> Sequence[Row]:
    """Those of a call's rows that this rank computes; `rows` has something for each."""
    shared: Any = model.adapter
    if not isinstance(shared, SharedAdapter):
        return rows
    return Rows(len(rows), shared.mesh).mine(rows)


def added_up(model: Model, tensor: torch.Tensor) -> torch.Tensor:
    """The sum of `tensor`, in place, over the ranks that compute the same rows of `model` as this one.

    Ranks of tensor parallel have all tokens each, and count as often as there are of them.
    """
    shared: Any = model.adapter
    if isinstance(shared, SharedAdapter):
        for axis in ("ring", "ulysses", "tp"):
            if getattr(shared.mesh.layout, axis) > 1:
                dist.all_reduce(tensor, group=shared.mesh.group(axis))
    return tensor


def check(module: nn.Module, title: str, plan: Plan, layout: Layout) -> None:
    """Raise UnsupportedRequestError when heads or weights of the network cannot be cut by tensor parallel."""
    heads = heads_of(module, plan)
    if heads % layout.tp:
        others = ", ".join(f"tp {size}" for size in dividing(heads, layout.tp))
        instead = replace(layout, tp=1, ulysses=layout.ulysses * layout.tp)
        raise UnsupportedRequestError(
            f"{title} has {heads} heads, which do not divide by tp {layout.tp} (layout: {layout}).",
            hint=f"Use {others + ', or ' if others else ''}{instead}.",
        )
    check_weights(module, plan.tensor, layout.tp, title)


def heads_of(module: nn.Module, plan: Plan) -> int:
    config: Any = module.config
    return int(config[plan.heads])


def plan_of(adapter: Family) -> Plan:
    """How a family's network is shared out. Raises UnsupportedRequestError when nobody has said."""
    plan = PLANS.get(adapter.transformer)
    if plan is None:
        raise UnsupportedRequestError(
            f"{adapter.title} cannot be shared out over several devices yet.", hint="Use one device."
        )
    return plan


def _share(model: Model, mesh: Mesh, plan: Plan) -> None:
    streams = _streams(mesh, plan)
    attention, handles = model.attention, []
    if mesh.layout.shards > 1:
        handles = share_tokens(model.module, plan.sequence, mesh, streams)
        model.attention = SharedAttention(attention, mesh, streams)
    model.adapter = cast(Family, SharedAdapter(Before(model.adapter, attention, handles), mesh, streams))


def _unshare(model: Model, shared: SharedAdapter) -> None:
    for handle in shared.before.handles:
        handle.remove()
    model.attention, model.adapter = shared.before.attention, shared.before.adapter


def _is_cut(shared: SharedAdapter) -> UnsupportedRequestError:
    return UnsupportedRequestError(
        f"The weights of this {shared.title} were cut by tp {shared.mesh.layout.tp}; "
        f"this rank has a part of them only.",
        hint="Load the model again.",
    )


def _check_axes(mesh: Mesh, layout: Layout) -> None:
    if any(size not in {1, there} for size, there in zip(layout.sizes, mesh.layout.sizes, strict=True)):
        raise InvalidRequestError(
            f"The layout {layout} does not go with a mesh of {mesh.layout}.",
            hint="Each axis is as long as the mesh's, or 1.",
        )


def _streams(mesh: Mesh, plan: Plan) -> Streams:
    layout = mesh.layout
    ring = mesh.place("ring") if layout.ring > 1 else 0
    ulysses = mesh.place("ulysses") if layout.ulysses > 1 else 0
    return Streams(layout.ring, layout.ulysses, ring, ulysses, plan.sequence.least)
