"""Engines as processes, and the messages the tests send them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import torch

from outboard.engine.config import Environment
from outboard.engine.demo.assets import LATENT_SHAPE, MODEL, MODEL_ROOT
from outboard.engine.demo.digits import prompt
from outboard.engine.launch import Engine, LaunchSpec, adopt_or_start
from outboard.engine.models.header import read_header
from outboard.engine.paths import runtime_dir
from outboard.engine.registry import read_registration
from outboard.protocol.client import Client
from outboard.protocol.messages.client import Predict, Run
from outboard.protocol.messages.common import Branch, FlowSampling, ModelRef
from outboard.protocol.messages.control import Status, StatusReport
from outboard.protocol.messages.guidance import Cfg
from outboard.protocol.shm import FAMILY, shm_root
from outboard.protocol.torch import pack_tree, to_wire

READY = 90.0


def ref(path: Path = MODEL, root: Path = MODEL_ROOT) -> ModelRef:
    header = read_header(path)
    return ModelRef(name=path.relative_to(root).as_posix(), size=header.size, digest=header.digest)


def branch(digit: int | None) -> Branch:
    guided = {**prompt(digit), "guidance": torch.tensor([3.5])}
    return Branch(id=f"digit-{digit}", conditioning=pack_tree(guided))


def noise(seed: int = 1, rows: int = 1) -> torch.Tensor:
    return torch.randn(rows, *LATENT_SHAPE, generator=torch.Generator().manual_seed(seed))


def run(steps: int = 4, **changes: Any) -> Run:
    """A digit with the shipped model; `changes` replace fields, `cfg` is the scale of plain guidance."""
    start = noise()
    fields: dict[str, Any] = {
        "model": ref(),
        "sampling": FlowSampling(multiplier=1.0),
        "sampler": "euler",
        "sigmas": to_wire(torch.linspace(1, 0, steps + 1)),
        "noise": to_wire(start),
        "latent": to_wire(torch.zeros_like(start)),
        "seed": 1,
        "guidance": Cfg(scale=changes.pop("cfg", 1.0)),
        "positive": [branch(3)],
    }
    return Run(**{**fields, **changes})


def predict(name: str, sigma: float = 1.0, digit: int = 3) -> Predict:
    return Predict(
        run=name,
        model=ref(),
        x=to_wire(noise()),
        timestep=to_wire(torch.tensor([sigma])),
        sigma=sigma,
        conditioning=branch(digit).conditioning,
    )


def start(*options: str, owned: bool = False, roots: dict[str, tuple[Path, ...]] | None = None) -> Engine:
    spec = LaunchSpec(roots=roots or {}, owned=owned, device="cpu", options=("--threads=1", *options))
    return adopt_or_start(spec)


def connect(engine: Engine, name: str = "test") -> Client:
    return Client.connect(engine.address, client=name, timeout=READY, alive=engine.alive)


def status(client: Client) -> StatusReport:
    found = client.control(Status())
    assert isinstance(found, StatusReport)
    return found


def wait_until(true: Callable[[], bool], timeout: float, what: str) -> float:
    """Seconds until `true()`; fails after `timeout`."""
    began = time.monotonic()
    while not true():
        assert time.monotonic() - began < timeout, f"not within {timeout} s: {what}"
        time.sleep(0.02)
    return time.monotonic() - began


def family(pid: int) -> list[psutil.Process]:
    """A process and all below it."""
    parent = psutil.Process(pid)
    return [parent, *parent.children(recursive=True)]


def gone(process: psutil.Process) -> bool:
    """Whether it ended; a zombie has, it only waits for its parent to look."""
    try:
        return bool(process.status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


def end_all(folder: Path) -> None:
    """Kill the engines that a failed test left behind in its runtime folder."""
    for path in folder.glob("*.json"):
        found = read_registration(path)
        if found is not None and psutil.pid_exists(found.pid) and found.pid != os.getpid():
            for process in family(found.pid):
                process.kill()


def leftovers(engine: str, folder: Path | None = None) -> list[str]:
    """Files of an engine that should be gone with it: sockets, registrations, shared memory."""
    place = folder or runtime_dir(Environment())
    files = [str(path) for path in place.iterdir() if path.suffix in (".sock", ".json", ".tmp", ".meeting")]
    return sorted([*files, *segments(engine)])


def segments(engine: str) -> list[str]:
    """Shared memory made for an engine."""
    return [str(path) for path in shm_root().glob(f"{FAMILY}{engine}-*")]
