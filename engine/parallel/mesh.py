"""The ranks of an existing process group, arranged by the axes of a layout."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from ...protocol.errors import InvalidRequestError
from .layout import AXES, Layout

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup
    from torch.distributed.device_mesh import DeviceMesh


class Mesh:
    """One DeviceMesh over all ranks, with the axes dp, cfg, ring, ulysses and tp."""

    def __init__(self, layout: Layout, devices: DeviceMesh) -> None:
        self.layout = layout
        self.devices = devices

    def group(self, axis: str) -> ProcessGroup:
        """The ranks that differ from this one in `axis` alone."""
        return self.devices.get_group(axis)

    def place(self, axis: str) -> int:
        """This rank's number along `axis`."""
        return self.devices.get_local_rank(axis)


def build_mesh(layout: Layout, device_type: str) -> Mesh:
    """Arrange all ranks; called by each of them, once. `device_type` is "cpu" on gloo, "cuda" on NCCL.

    Raises InvalidRequestError when there is no process group, or its size is not the layout's.
    """
    if not dist.is_initialized():
        raise InvalidRequestError("There is no process group to arrange.", hint="Start the ranks first.")
    layout.check_world(dist.get_world_size())
    return Mesh(layout, init_device_mesh(device_type, layout.sizes, mesh_dim_names=AXES))
