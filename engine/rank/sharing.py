"""How a rank's models are shared out over its group: the layout of each request, and the meshes for them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from ...protocol.errors import UnsupportedRequestError
from ...protocol.messages import Message
from ...protocol.messages.client import Predict, Run
from ...protocol.messages.guidance import Cfg
from ..link import RankSpec
from ..models.model import Model
from ..parallel.apply import check, heads_of, plan_of, rearrange
from ..parallel.layout import Layout, automatic
from .residency import Wanted

if TYPE_CHECKING:
    from ..parallel.mesh import Mesh

#: What rows of a call are to `automatic`: anything above 1 lets ranks have some each.
SEVERAL, ONE = 2.0, 1.0


class Sharing:
    """The configured layout, or the best one for each request when none is configured."""

    def __init__(self, spec: RankSpec, device: torch.device) -> None:
        self._world = spec.world_size
        self._layout = Layout(**spec.layout) if spec.layout else None
        self._device = device
        self._meshes: dict[Layout, Mesh] = {}

    def choose(self, wanted: Wanted, rows: int, room: int | None = None) -> Layout:
        """The layout for calls of `rows` rows; every rank is to say the same.

        The weights go into `room` bytes of the fullest device, None if they fit anyway. Raises
        UnsupportedRequestError or InvalidRequestError, before a weight is read, for a model that cannot be
        shared out so.
        """
        if self._world == 1:
            return Layout()
        plan = plan_of(wanted.adapter)
        layout = self._layout or automatic(
            self._world,
            cfg=SEVERAL if rows > 1 else ONE,
            heads=heads_of(wanted.module, plan),
            nbytes=wanted.nbytes,
            room=room,
        )
        if layout.tp > 1 and not wanted.resident:
            _check_whole(wanted, layout)
            check(wanted.module, wanted.adapter.title, plan, layout)
        return layout

    def meet(self, layout: Layout) -> None:
        """Have the groups of `layout` ready; all ranks do so together."""
        if self._world > 1 and layout not in self._meshes:
            from ..parallel.mesh import build_mesh

            self._meshes[layout] = build_mesh(layout, self._device.type)

    def apply(self, model: Model, layout: Layout) -> None:
        """Share out a model that was read whole, or that has another layout; all ranks do so together."""
        if self._world == 1:
            return
        rearrange(model, self._meshes[layout], layout)
        if model.device != self._device:
            # Cut on the host, where the whole has room.
            model.module.to(self._device)
            model.device = self._device


def rows_of(message: Message | None) -> int:
    """Rows that the calls of a request have, or would have if all went into one."""
    if isinstance(message, Predict):
        return message.x.shape[0]
    if isinstance(message, Run):
        guidance = message.guidance
        one = message.negative is None or (isinstance(guidance, Cfg) and math.isclose(guidance.scale, 1.0))
        return message.latent.shape[0] * (1 if one else 2)
    return 1


def _check_whole(wanted: Wanted, layout: Layout) -> None:
    if wanted.low_bit:
        raise UnsupportedRequestError(
            f"{wanted.name} has quantised layers, which cannot be cut by tp {layout.tp}.",
            hint="Use the bf16 file of the model, or ulysses in place of tp.",
        )
