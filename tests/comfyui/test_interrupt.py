"""The red button ends a run of ours about as soon as it ends stock's, on the same graph in the same server.

Robust on a busy machine: the two are interrupted in turn, and the medians are compared. Ours is allowed half
of stock's time again and a floor for what a wait costs, for ours polls and both are seen through HTTP. The
floor is a part of stock's step, so that it grows with the load as they do. What is seen here is an interrupt
that is lost or waits for several steps; one between two blocks is for tests/engine/test_interruption.py.
"""

from __future__ import annotations

import time
from statistics import median
from typing import Any

import pytest

from comfyui.graphs import FLUX, Graph, sampled, saved
from comfyui.server import ComfyServer
from comfyui.test_liveness import LARGE, progress, sampler_of, wait_until

pytestmark = [pytest.mark.comfyui, pytest.mark.timeout(300)]

TIMES, STEPS, RATIO = 3, 12, 1.5
#: Of a step of stock's.
FLOOR = 0.4


def interrupted(comfy: ComfyServer, ours: bool, sampler: str, seed: int) -> tuple[float, float]:
    """Seconds of the second step, and from an interrupt in the third to the end of the prompt."""
    graph = Graph()
    latent = FLUX.latent(graph, scale=LARGE)
    given: dict[str, Any] = {"steps": STEPS, "seed": seed, "sampler_name": sampler}
    saved(graph, sampled(graph, FLUX.model(graph, ours), *FLUX.texts(graph), latent, **given), "stop")
    node = sampler_of(graph)
    before = progress(comfy, node)["calls"]
    prompt = comfy.submit(graph.nodes)
    wait_until(lambda: progress(comfy, node)["calls"] > before)
    step = wait_until(lambda: progress(comfy, node)["calls"] > before + 1)
    time.sleep(step / 10)
    comfy.post("/interrupt", {})
    began = time.monotonic()
    assert comfy.wait(prompt).interrupted
    return step, time.monotonic() - began


@pytest.mark.parametrize("sampler", ["euler", "euler_cfg_pp"], ids=["whole_loop", "per_step"])
def test_an_interrupt_takes_no_longer_than_stock(comfy: ComfyServer, sampler: str) -> None:
    seconds: dict[bool, list[float]] = {True: [], False: []}
    steps = []
    for number in range(TIMES):
        for ours in (False, True):
            step, took = interrupted(comfy, ours, sampler, seed=400 + 2 * number + ours)
            seconds[ours].append(took)
            if not ours:
                steps.append(step)
    stock, engine, floor = median(seconds[False]), median(seconds[True]), FLOOR * median(steps)
    assert engine <= RATIO * stock + floor, (
        f"{engine:.3f} s; stock {stock:.3f} s, a step {median(steps):.3f} s"
    )
