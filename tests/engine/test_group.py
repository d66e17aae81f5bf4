"""Two ranks behind one engine: the picture of one rank, and every fault of one of them told within seconds."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

import harness
from lora.digits import lora_file
from outboard.engine.launch import Engine
from outboard.protocol.client import Client
from outboard.protocol.errors import CancelledError, EngineError, OutboardError
from outboard.protocol.messages import Message
from outboard.protocol.messages.cache import CacheReport, CacheSettings
from outboard.protocol.messages.client import CloseRun
from outboard.protocol.messages.common import Mask
from outboard.protocol.messages.engine import Closed, Prediction, Result, Step
from outboard.protocol.torch import from_wire, to_wire

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(240)]

STEPS, LONG, TOLD = 8, 4000, 10.0
FAULTS = Path(__file__).parents[1] / "faults"
GUIDED: dict[str, Any] = {"cfg": 3.0, "negative": [harness.branch(None)]}
LAYOUTS = {
    "auto": ("--ranks=2",),
    "cfg 2": ("--cfg=2",),
    "ulysses 2": ("--sp=2",),
    "ring 2": ("--ring=2",),
    "tp 2": ("--tp=2",),
}


def masked() -> Mask:
    mask = torch.zeros_like(harness.noise())
    mask[..., : mask.shape[-1] // 2] = 1.0
    return Mask(mask=to_wire(mask))


def batch(rows: int) -> dict[str, Any]:
    start = harness.noise(rows=rows)
    return {"noise": to_wire(start), "latent": to_wire(torch.zeros_like(start))}


RUNS: dict[str, dict[str, Any]] = {
    "plain": {},
    "guided": GUIDED,
    "two rows": {**GUIDED, **batch(2)},
    "three rows": batch(3),
    "ancestral": {**GUIDED, "sampler": "euler_ancestral"},
    "masked": {**GUIDED, "mask": masked()},
    "cached": {**GUIDED, "cache": CacheSettings(preset="balanced")},
}


@pytest.fixture
def engine_of(runtime: Path) -> Iterator[Any]:
    """Starts engines of the test's own, one after the other."""
    started: list[Engine] = []

    def start(*options: str) -> Engine:
        while started:
            started.pop().stop()
        started.append(harness.start(*options))
        return started[0]

    yield start
    for engine in started:
        engine.stop()
    assert [path for path in runtime.iterdir() if path.suffix == ".meeting"] == []


def drawn(client: Client, **changes: Any) -> Result:
    found = client.request(harness.run(STEPS, **changes))
    assert isinstance(found, Result)
    return found


def apart(one: Result, two: Result) -> float:
    first, second = from_wire(one.latent), from_wire(two.latent)
    return float((first - second).abs().max() / second.abs().max())


def made(report: CacheReport | None) -> Any:
    return report and (report.computed, report.reused, report.hit_rates, report.blocks_computed)


def predicted(client: Client, layout: str) -> torch.Tensor:
    """One call of a per-step run of two rows, and its report."""
    asked = harness.predict("by step")
    both = {name: torch.cat([value] * 2) for name, value in prompt_of(3).items()}
    given = {"x": to_wire(harness.noise(rows=2)), "timestep": to_wire(torch.tensor([0.7, 0.7]))}
    found = client.request(asked.model_copy(update={**given, "conditioning": harness.packed(both)}))
    closed = client.request(CloseRun(run="by step"))
    assert isinstance(found, Prediction) and isinstance(closed, Closed) and closed.report is not None
    assert closed.report.layout == layout
    assert (closed.report.steps, closed.report.forwards) == (1, 1)
    return from_wire(found.v).clone()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_two_ranks_draw_what_one_draws(layout: str, engine_of: Any, client: Client) -> None:
    pair = harness.connect(engine_of(*LAYOUTS[layout]))
    for name, changes in RUNS.items():
        found, alone = drawn(pair, **changes), drawn(client, **changes)
        assert apart(found, alone) <= 1e-5, name
        report = found.report
        assert report.world_size == len(report.peak_bytes) == 2
        assert layout in ("auto", report.layout)
        assert (report.steps, report.forwards) == (alone.report.steps, alone.report.forwards)
        assert made(report.cache) == made(alone.report.cache), name
    pair.close()
