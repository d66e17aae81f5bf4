"""A rank put together: device, blobs, line and worker, in this order."""

from __future__ import annotations

import os

import torch

from ...protocol.shm import Segments
from ..link import RankSpec, Ready
from ..models.registry import FAMILIES
from ..sampling.samplers import SAMPLERS
from .adapters import AdapterStore
from .allocator import keep_buffers
from .blobs import BlobStore
from .device import choose_device, describe
from .io import Line
from .peers import join
from .worker import Worker


def assemble(spec: RankSpec) -> tuple[Line, Worker]:
    """Take the device, meet the other ranks, and tell the supervisor that this one is ready.

    Raises EngineStartError when the device is not there.
    """
    if spec.threads:
        torch.set_num_threads(spec.threads)
    device = choose_device(spec.device, spec.rank)
    if device.type == "cpu":
        keep_buffers()
    # The first allocation proves the device; a broken driver must not wait for the first run.
    torch.zeros(1, device=device)
    if spec.world_size > 1 and device.type == "cpu" and not spec.threads:
        torch.set_num_threads(max(1, torch.get_num_threads() // spec.world_size))
    peers = join(spec, device)
    blobs = BlobStore(spec.blob_budget)
    adapters = AdapterStore(spec.adapter_budget, blobs)
    # One opener for each thread that reads shared memory.
    line = Line(spec, blobs, adapters, Segments(spec.engine))
    worker = Worker(spec, device, line, blobs, adapters, Segments(spec.engine), peers)
    line.start(_ready(device))
    return line, worker


def _ready(device: torch.device) -> Ready:
    return Ready(
        pid=os.getpid(),
        device=describe(device),
        samplers=sorted(SAMPLERS),
        families=[family.name for family in FAMILIES],
    )
