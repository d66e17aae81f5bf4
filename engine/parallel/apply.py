"""Share a loaded model out over the ranks of a mesh, and take that back."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
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
                return self.before.adapter.predict(module, x, timestep, given)
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
    plan = _plan(model)
    if layout.tp > 1:
        check(model, plan, layout)
        share_weights(model.module, plan.tensor, mesh)
    streams = _streams(mesh, plan)
    attention, handles = model.attention, []
    if layout.shards > 1:
        handles = share_tokens(model.module, plan.sequence, mesh, streams)
        model.attention = SharedAttention(attention, mesh, streams)
    model.adapter = cast(Family, SharedAdapter(Before(model.adapter, attention, handles), mesh, streams))


def undo(model: Model) -> None:
    """Make `model` one device's again, in place.

    Raises UnsupportedRequestError after tensor parallel: this rank has only a part of the weights.
    """
    shared: Any = model.adapter
    if not isinstance(shared, SharedAdapter):
        return
    if shared.mesh.layout.tp > 1:
        raise UnsupportedRequestError(
            f"The weights of this {shared.title} were cut by tp {shared.mesh.layout.tp}; "
            f"this rank has a part of them only.",
            hint="Load the model again.",
        )
    for handle in shared.before.handles:
        handle.remove()
    model.attention, model.adapter = shared.before.attention, shared.before.adapter


def check(model: Model, plan: Plan, layout: Layout) -> None:
    """Raise UnsupportedRequestError when the heads or weights of `model` cannot be cut by tensor parallel."""
    config: Any = model.module.config
    heads, title = config[plan.heads], model.adapter.title
    if heads % layout.tp:
        others = ", ".join(f"tp {size}" for size in dividing(heads, layout.tp))
        instead = replace(layout, tp=1, ulysses=layout.ulysses * layout.tp)
        raise UnsupportedRequestError(
            f"{title} has {heads} heads, which do not divide by tp {layout.tp} (layout: {layout}).",
            hint=f"Use {others + ', or ' if others else ''}{instead}.",
        )
    check_weights(model.module, plan.tensor, layout.tp, title)


def _check_axes(mesh: Mesh, layout: Layout) -> None:
    if any(size not in {1, there} for size, there in zip(layout.sizes, mesh.layout.sizes, strict=True)):
        raise InvalidRequestError(
            f"The layout {layout} does not go with a mesh of {mesh.layout}.",
            hint="Each axis is as long as the mesh's, or 1.",
        )


def _plan(model: Model) -> Plan:
    plan = PLANS.get(model.adapter.transformer)
    if plan is None:
        raise UnsupportedRequestError(
            f"{model.adapter.title} cannot be shared out over several devices yet.", hint="Use one device."
        )
    return plan


def _streams(mesh: Mesh, plan: Plan) -> Streams:
    layout = mesh.layout
    ring = mesh.place("ring") if layout.ring > 1 else 0
    ulysses = mesh.place("ulysses") if layout.ulysses > 1 else 0
    return Streams(layout.ring, layout.ulysses, ring, ulysses, plan.sequence.least)
