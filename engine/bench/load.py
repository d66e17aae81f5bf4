"""A large checkpoint into an engine's memory, against the safetensors library reading the same file.

Both read in fresh processes that have imported what they need, in turns, with the file in the page cache; the
engine is asked through its socket, like by ComfyUI.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from shutil import disk_usage
from statistics import median
from time import perf_counter
from typing import Any

import psutil

from ...protocol.client import Client
from ...protocol.errors import InternalError, OutOfMemoryError
from ...protocol.messages.client import Load
from ...protocol.messages.common import ModelRef
from ...protocol.messages.control import Status, StatusReport
from ...protocol.messages.engine import Loaded
from ..demo.assets import MODEL, MODEL_NAME
from ..launch import LaunchSpec, adopt_or_start
from ..models.flux1 import Flux1
from ..models.header import read_header
from .memory import HostMemory
from .row import Row
from .weights import file_size, published_shapes, write_file

ROUNDS = 5
TIME_TARGET = MEMORY_TARGET = 1.15
NAME = "flux1.safetensors"
#: FLUX.1 dev with a fifth of its blocks: 4.6 GB in bfloat16.
CONFIG: Mapping[str, Any] = {
    "in_channels": 64,
    "out_channels": 64,
    "num_layers": 3,
    "num_single_layers": 9,
    "attention_head_dim": 128,
    "num_attention_heads": 24,
    "joint_attention_dim": 4096,
    "pooled_projection_dim": 768,
    "guidance_embeds": True,
    "axes_dims_rope": (16, 56, 56),
}
#: Room beside the file itself, on disk and in memory.
SPARE = 1 << 30


def rows(
    folder: Path | None = None, *, config: Mapping[str, Any] = CONFIG, rounds: int = ROUNDS
) -> Iterator[Row]:
    """Seconds of both, their median ratio, and the engine's peak of host memory over the file's size.

    Raises OutOfMemoryError when `folder` or the memory has no room.
    """
    shapes = published_shapes(Flux1(), config)
    with tempfile.TemporaryDirectory(prefix="load-", dir=folder) as scratch:
        path = Path(scratch) / NAME
        check_room(path.parent, file_size(shapes), file_size(shapes))
        write_file(path, shapes)
        _read(path)  # into the page cache
        floor, ours, peaks = [], [], []
        for _ in range(rounds):
            floor.append(_read(path))
            seconds, peak = _load(path)
            ours.append(seconds)
            peaks.append(peak)
        yield from _report(path.stat().st_size, ours, floor, peaks)


def check_room(folder: Path, on_disk: int, in_memory: int) -> None:
    """Raises OutOfMemoryError unless there is room for so many bytes, and some to spare."""
    for room, size, where in (
        (disk_usage(folder).free, on_disk, folder),
        (psutil.virtual_memory().available, in_memory, "memory"),
    ):
        if room < size + SPARE:
            raise OutOfMemoryError(
                f"The benchmark needs {(size + SPARE) / 1e9:.1f} GB in {where}, there are {room / 1e9:.1f}.",
                hint="Give another folder with --folder, or close other programs.",
            )


def _read(path: Path) -> float:
    """Seconds of the safetensors library, in a process of its own."""
    command = [sys.executable, "-m", f"{__package__}.reader", str(path)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def _load(path: Path) -> tuple[float, int]:
    """Seconds until a new engine answers that it holds the model, and the bytes its rank grew by at the most.

    It loads the small shipped model first, so that no import counts.
    """
    spec = LaunchSpec(
        {"diffusion_models": (path.parent,)},
        device="cpu",
        dtype="bfloat16",
        adopt=False,
        options=("--threads=1",),
    )
    engine = adopt_or_start(spec)
    try:
        client = Client.connect(engine.address, client="bench", timeout=120.0, alive=engine.alive)
        _make_resident(client, MODEL, MODEL_NAME)
        with HostMemory(_rank_pid(client)) as memory:
            began = perf_counter()
            _make_resident(client, path, NAME)
            seconds = perf_counter() - began
        client.close()
    finally:
        engine.stop()
    return seconds, memory.growth


def _make_resident(client: Client, path: Path, name: str) -> None:
    header = read_header(path)
    reply = client.request(Load(model=ModelRef(name=name, size=header.size, digest=header.digest)))
    if not isinstance(reply, Loaded):
        raise InternalError(f"A load ended in {reply.type}.")


def _rank_pid(client: Client) -> int:
    report = client.control(Status())
    if not isinstance(report, StatusReport):
        raise InternalError(f"A status ended in {report.type}.")
    return report.ranks[0].pid


def _report(size: int, ours: list[float], floor: list[float], peaks: list[int]) -> Iterator[Row]:
    case = f"{size / 1e9:.3g} GB bfloat16"
    yield Row("load", case, "engine", median(ours), "s", None, True)
    yield Row("load", case, "safetensors", median(floor), "s", None, True)
    ratio = median(mine / other for mine, other in zip(ours, floor, strict=True))
    yield Row("load", case, "engine / safetensors", ratio, "x", TIME_TARGET, ratio <= TIME_TARGET)
    share = max(peaks) / size
    yield Row("load", case, "peak memory / file", share, "x", MEMORY_TARGET, share <= MEMORY_TARGET)
