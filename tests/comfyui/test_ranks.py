"""An engine of two ranks behind stock samplers and ours: stock ComfyUI's latents, one rank's reuse."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from comfyui import loras
from comfyui.families import WAN
from comfyui.graphs import DIGITS, ERNIE, FLUX, Graph, Link, Subject, sampled, saved
from comfyui.pairs import succeeded
from comfyui.server import ComfyServer
from comfyui.test_liveness import LARGE, progress, sampler_of, wait_until

pytestmark = [pytest.mark.comfyui, pytest.mark.timeout(300)]

STEPS = 4


def model_of(graph: Graph, subject: Subject, ranks: int, **degrees: int) -> Link:
    """The subject by stock's loader for no ranks, else by ours with an engine of so many."""
    if not ranks:
        return subject.model(graph, ours=False)
    engine = graph.add("OutboardEngine", address="auto", device="auto", dtype="auto", ranks=ranks, **degrees)
    return graph.add("OutboardUNETLoader", unet_name=subject.file, weight_dtype="default", engine=engine)


class Drawn:
    """A latent and, where our loader was used, its report."""

    def __init__(self, server: ComfyServer, graph: Graph, latent: Link, ours: bool) -> None:
        save = saved(graph, latent, "ranks")
        report = graph.add("OutboardReport", latent=latent) if ours else None
        done = succeeded(server.run(graph.nodes))
        self.latent = load_file(server.latent_path(done, save[0]))["latent_tensor"]
        self.report: dict[str, Any] = json.loads(done.text(report[0])) if report else {}

    def apart(self, other: Drawn) -> float:
        return float((self.latent - other.latent).abs().max() / other.latent.abs().max())


def draw(
    server: ComfyServer,
    subject: Subject,
    ranks: int,
    *,
    lora: str = "",
    cache: str = "",
    degrees: dict[str, int] | None = None,
    batch: int = 1,
    **widgets: Any,
) -> Drawn:
    graph = Graph()
    model = model_of(graph, subject, ranks, **(degrees or {}))
    if lora:
        model = graph.add("LoraLoaderModelOnly", model=model, lora_name=lora, strength_model=0.8)
    if cache:
        model = graph.add("OutboardCacheSettings", model=model, preset=cache)
    latent = subject.latent(graph, batch=batch)
    given = {"steps": STEPS, "cfg": 2.0, **widgets}
    return Drawn(server, graph, sampled(graph, model, *subject.texts(graph), latent, **given), ranks > 0)


def engine_of(server: ComfyServer, ranks: int) -> dict[str, Any]:
    engines = server.get("/outboard/status")["engines"]
    return next(dict(engine) for engine in engines if len(engine.get("ranks", [])) == ranks)


@pytest.mark.parametrize("node", ["KSampler", "OutboardKSampler"])
@pytest.mark.parametrize("subject", [FLUX, ERNIE, WAN, DIGITS], ids=lambda subject: subject.kind)
def test_two_ranks_draw_what_stock_comfyui_draws(comfy: ComfyServer, subject: Subject, node: str) -> None:
    stock = draw(comfy, subject, 0)
    ours = draw(comfy, subject, 2, node=node)
    assert ours.apart(stock) <= subject.tolerance
    assert (ours.report["world_size"], ours.report["layout"], ours.report["path"]) == (
        2,
        "cfg 2",
        "whole_loop",
    )
    assert len(ours.report["peak_bytes"]) == 2


@pytest.mark.parametrize("axis", ["ulysses", "ring", "tp"])
def test_degrees_of_the_engine_node_are_the_layout(comfy: ComfyServer, axis: str) -> None:
    stock = draw(comfy, DIGITS, 0, batch=2)
    ours = draw(comfy, DIGITS, 2, degrees={axis: 2}, batch=2)
    assert ours.report["layout"] == f"{axis} 2"
    assert ours.apart(stock) <= DIGITS.tolerance


def test_a_run_step_by_step_is_shared_too(comfy: ComfyServer) -> None:
    sampler = "euler_cfg_pp"
    ours = draw(comfy, FLUX, 2, sampler_name=sampler)
    assert (ours.report["path"], ours.report["world_size"]) == ("per_step", 2)
    assert ours.apart(draw(comfy, FLUX, 0, sampler_name=sampler)) <= FLUX.tolerance


def test_progress_and_preview_come_once_per_step(comfy: ComfyServer) -> None:
    succeeded(comfy.run(large(1, 70).nodes))  # loading has a progress of its own
    graph = large(6, 71)
    node = sampler_of(graph)
    before = progress(comfy, node)
    succeeded(comfy.run(graph.nodes))
    after = progress(comfy, node)
    assert after["calls"] - before["calls"] == 6
    assert after["previews"] - before["previews"] == 6


def test_a_cancel_ends_within_a_step_on_both_ranks(comfy: ComfyServer) -> None:
    succeeded(comfy.run(large(1, 81).nodes))
    started = engine_of(comfy, 2)["counters"]["groups_started"]
    graph = large(20, 82)
    node = sampler_of(graph)
    before = progress(comfy, node)["calls"]
    prompt = comfy.submit(graph.nodes)
    wait_until(lambda: progress(comfy, node)["calls"] >= before + 1)
    one_step = wait_until(lambda: progress(comfy, node)["calls"] >= before + 2)
    comfy.post("/interrupt", {})
    began = time.monotonic()
    assert comfy.wait(prompt).interrupted
    assert time.monotonic() - began < one_step + 1.0
    wait_until(lambda: engine_of(comfy, 2)["running"] == "", timeout=one_step + 1.0)
    assert all(rank["state"] == "ready" for rank in engine_of(comfy, 2)["ranks"])
    succeeded(comfy.run(large(1, 83).nodes))
    assert engine_of(comfy, 2)["counters"]["groups_started"] == started


def large(steps: int, seed: int) -> Graph:
    graph = Graph()
    latent = FLUX.latent(graph, scale=LARGE)
    texts, model = FLUX.texts(graph), model_of(graph, FLUX, 2)
    saved(graph, sampled(graph, model, *texts, latent, steps=steps, seed=seed, cfg=2.0), "large")
    return graph


def test_a_lora_goes_on_and_off(comfy: ComfyServer) -> None:
    loras.make(comfy.base / "models" / "loras")
    name = "flux-kohya.safetensors"
    off, on = draw(comfy, FLUX, 2, seed=91), draw(comfy, FLUX, 2, seed=91, lora=name)
    assert on.apart(draw(comfy, FLUX, 0, seed=91, lora=name)) <= FLUX.tolerance
    assert on.apart(off) > 1e-3
    again = draw(comfy, FLUX, 2, seed=91, cfg=2.0000001)
    assert torch.allclose(again.latent, off.latent, rtol=0, atol=1e-6)


@pytest.mark.parametrize("degrees", [{}, {"ulysses": 2}], ids=["auto", "ulysses"])
def test_balanced_reuses_what_one_rank_reuses(comfy: ComfyServer, degrees: dict[str, int]) -> None:
    given: dict[str, Any] = {"steps": 28, "cfg": 3.0, "cache": "balanced", "batch": 2}
    two, one = draw(comfy, DIGITS, 2, degrees=degrees, **given), draw(comfy, DIGITS, 1, **given)
    made = [(drawn.report["cache"]["computed"], drawn.report["cache"]["reused"]) for drawn in (two, one)]
    assert made[0] == made[1]
    assert sum(made[0][1]) > 0
    assert two.apart(one) <= 1e-4


def test_a_remote_engine_has_its_own_ranks(comfy: ComfyServer) -> None:
    graph = Graph()
    engine = graph.add(
        "OutboardEngine", address="tcp://127.0.0.1:9", device="auto", dtype="auto", ranks=2, tp=2
    )
    graph.add("OutboardUNETLoader", unet_name=FLUX.file, weight_dtype="default", engine=engine)
    model = graph.add("OutboardUNETLoader", unet_name=FLUX.file, weight_dtype="default", engine=engine)
    saved(graph, sampled(graph, model, *FLUX.texts(graph), FLUX.latent(graph)), "remote")
    error = comfy.run(graph.nodes).error
    assert error is not None
    assert "has been started with its own ranks" in error["exception_message"]
