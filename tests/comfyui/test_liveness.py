"""Cancelling, previews, unloading, and what is left when either side dies."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from comfyui import files, shapes, versions
from comfyui.conftest import comfy_python, comfy_tree, make_base
from comfyui.graphs import FLUX, Graph, Subject, sampled, saved
from comfyui.pairs import succeeded
from comfyui.server import ComfyServer, environment

pytestmark = [pytest.mark.comfyui, pytest.mark.timeout(300)]

#: Latents of this factor make a step of the tiny FLUX last long enough to be interrupted.
LARGE = 12


def graph_of(steps: int = 4, scale: int = 1, **widgets: Any) -> Graph:
    graph = Graph()
    texts = FLUX.text(graph, 1), FLUX.text(graph, 2)
    latent = FLUX.latent(graph, scale=scale)
    saved(graph, sampled(graph, FLUX.model(graph, ours=True), *texts, latent, steps=steps, **widgets), "live")
    return graph


def sampler_of(graph: Graph) -> str:
    return next(name for name, node in graph.nodes.items() if node["class_type"] == "KSampler")


def progress(server: ComfyServer, node: str) -> dict[str, int]:
    counts: dict[str, int] = server.get("/outboard-test/progress").get(node, {"calls": 0, "previews": 0})
    return counts


def wait_until(holds: Callable[[], bool], timeout: float = 60.0) -> float:
    """Seconds until `holds()`."""
    began = time.monotonic()
    while not holds():
        assert time.monotonic() - began < timeout, "it did not happen"
        time.sleep(0.01)
    return time.monotonic() - began


def engine_status(server: ComfyServer) -> dict[str, Any]:
    engines = server.get("/outboard/status")["engines"]
    running = [engine for engine in engines if engine["state"] == "running"]
    return dict(running[0]) if running else {}


def test_a_cancel_at_step_two_ends_within_a_step(comfy: ComfyServer) -> None:
    succeeded(comfy.run(graph_of(scale=LARGE, steps=1, seed=1).nodes))
    graph = graph_of(scale=LARGE, steps=20, seed=2)
    node = sampler_of(graph)
    before = progress(comfy, node)["calls"]
    prompt = comfy.submit(graph.nodes)
    wait_until(lambda: progress(comfy, node)["calls"] >= before + 1)
    one_step = wait_until(lambda: progress(comfy, node)["calls"] >= before + 2)
    comfy.post("/interrupt", {})
    began = time.monotonic()
    done = comfy.wait(prompt)
    assert done.interrupted
    assert time.monotonic() - began < one_step + 1.0
    assert progress(comfy, node)["calls"] - before <= 4
    wait_until(lambda: engine_status(comfy)["running"] == "", timeout=one_step + 1.0)
    succeeded(comfy.run(graph_of(seed=3).nodes))


def test_a_cancel_of_a_step_by_step_run_ends_within_a_step(comfy: ComfyServer) -> None:
    graph = graph_of(scale=LARGE, steps=20, seed=4, sampler_name="euler_cfg_pp")
    node = sampler_of(graph)
    before = progress(comfy, node)["calls"]
    prompt = comfy.submit(graph.nodes)
    wait_until(lambda: progress(comfy, node)["calls"] >= before + 1)
    one_step = wait_until(lambda: progress(comfy, node)["calls"] >= before + 2)
    comfy.post("/interrupt", {})
    began = time.monotonic()
    assert comfy.wait(prompt).interrupted
    assert time.monotonic() - began < one_step + 1.0


def test_a_queued_prompt_is_cancelled_without_touching_the_engine(comfy: ComfyServer) -> None:
    first = comfy.submit(graph_of(scale=LARGE, steps=3, seed=5).nodes)
    second = comfy.submit(graph_of(steps=3, seed=6).nodes)
    comfy.post("/queue", {"delete": [second]})
    succeeded(comfy.wait(first))
    assert second not in comfy.get("/history")


def test_progress_and_preview_come_once_per_step(comfy: ComfyServer) -> None:
    for widgets in (
        {"seed": 7},
        {"seed": 8, "sampler_name": "heun"},
        {"seed": 9, "sampler_name": "euler_cfg_pp"},
    ):
        graph = graph_of(steps=6, **widgets)
        node = sampler_of(graph)
        before = progress(comfy, node)
        succeeded(comfy.run(graph.nodes))
        after = progress(comfy, node)
        assert after["calls"] - before["calls"] == 6
        assert after["previews"] - before["previews"] == 6


@pytest.mark.skipif(versions.first().old, reason="an old ComfyUI has one preview method for all prompts")
def test_previews_that_are_off_leave_the_progress(comfy: ComfyServer) -> None:
    graph = graph_of(steps=6, seed=10)
    node = sampler_of(graph)
    before = progress(comfy, node)
    succeeded(comfy.run(graph.nodes, preview_method="none"))
    after = progress(comfy, node)
    assert after["calls"] - before["calls"] == 6
    assert after["previews"] == before["previews"]


def test_free_reaches_the_engine_and_the_next_run_loads_again(comfy: ComfyServer) -> None:
    succeeded(comfy.run(graph_of(seed=11).nodes))
    assert [model["name"] for model in engine_status(comfy)["models"]].count(FLUX.file) == 1
    comfy.post("/free", {"unload_models": True})
    wait_until(lambda: engine_status(comfy)["models"] == [])
    succeeded(comfy.run(graph_of(seed=12).nodes))
    assert [model["name"] for model in engine_status(comfy)["models"]].count(FLUX.file) == 1


def test_a_run_after_the_engine_was_killed_has_a_new_engine(comfy: ComfyServer) -> None:
    succeeded(comfy.run(graph_of(seed=13).nodes))
    killed = engine_status(comfy)["pid"]
    os.kill(killed, signal.SIGKILL)
    succeeded(comfy.run(graph_of(seed=14).nodes))
    assert engine_status(comfy)["pid"] != killed


def test_a_rank_killed_in_a_run_ends_that_run_with_an_error(comfy: ComfyServer) -> None:
    graph = graph_of(scale=LARGE, steps=20, seed=15)
    node = sampler_of(graph)
    before = progress(comfy, node)["calls"]
    prompt = comfy.submit(graph.nodes)
    wait_until(lambda: progress(comfy, node)["calls"] > before)
    os.kill(engine_status(comfy)["ranks"][0]["pid"], signal.SIGKILL)
    began = time.monotonic()
    done = comfy.wait(prompt)
    assert done.error is not None
    assert time.monotonic() - began < 10.0
    succeeded(comfy.run(graph_of(seed=16).nodes))


@pytest.fixture
def own_server(tmp_path: Path, runtime: Path) -> Iterator[ComfyServer]:
    """A server of this test's own, to be killed."""
    base = make_base(tmp_path / "base")
    server = ComfyServer(
        comfy_tree(), comfy_python(), base, environment(runtime, sys.executable), ["--force-fp32"]
    )
    server.start()
    yield server
    server.kill()


def processes_of(runtime: Path) -> list[int]:
    """Every process whose environment says that it belongs to `runtime`, except this one."""
    mark = f"OUTBOARD_RUNTIME_DIR={runtime}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                if mark in (entry / "environ").read_bytes():
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="looks for processes in /proc")
def test_nothing_is_left_ten_seconds_after_comfyui_was_killed(own_server: ComfyServer, runtime: Path) -> None:
    graph = graph_of(scale=LARGE, steps=20, seed=17)
    before = set(processes_of(runtime))
    prompt = own_server.submit(graph.nodes)
    wait_until(lambda: bool(engine_status(own_server)) and engine_status(own_server)["running"] != "")
    started = set(processes_of(runtime)) - before
    assert len(started) >= 2, f"an engine and its rank for prompt {prompt}"
    engine = engine_status(own_server)["engine"]
    own_server.kill()
    wait_until(lambda: not started & set(processes_of(runtime)), timeout=10.0)
    assert [path.name for path in Path("/dev/shm").glob(f"outboard-{engine}-*")] == []


def test_a_model_that_no_graph_uses_any_more_is_dropped(comfy: ComfyServer) -> None:
    succeeded(comfy.run(graph_of(seed=18).nodes))
    assert FLUX.file in [model["name"] for model in engine_status(comfy)["models"]]
    other = Graph()
    saved(other, FLUX.latent(other, seed=18), "other")
    succeeded(comfy.run(other.nodes))
    wait_until(lambda: engine_status(comfy)["models"] == [], timeout=30.0)


def test_a_cancel_while_loading_ends_at_once(comfy: ComfyServer) -> None:
    file = comfy.base / "models" / "diffusion_models" / "slow-to-load.safetensors"
    files.sparse(file, shapes.flux(3072, 1, 3, 4096, 768))
    graph = Graph()
    slow = Subject(file.name, context=4096, pooled=768)
    texts = slow.text(graph, 1), slow.text(graph, 2)
    saved(graph, sampled(graph, slow.model(graph, ours=True), *texts, slow.latent(graph), steps=1), "slow")
    node = sampler_of(graph)
    before = progress(comfy, node)["calls"]
    prompt = comfy.submit(graph.nodes)
    wait_until(lambda: progress(comfy, node)["calls"] > before)
    comfy.post("/interrupt", {})
    began = time.monotonic()
    assert comfy.wait(prompt).interrupted
    assert time.monotonic() - began < 2.0
    assert file.name not in [model["name"] for model in engine_status(comfy)["models"]]
    file.unlink()
