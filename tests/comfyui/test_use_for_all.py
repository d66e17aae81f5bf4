"""The setting "Use Outboard for every diffusion model" exchanges loaders in submitted prompts."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from comfyui import quantised, versions
from comfyui.files import VACE
from comfyui.graphs import FLUX, Graph, sampled, saved
from comfyui.pairs import succeeded
from comfyui.server import ComfyServer, Outcome

pytestmark = [pytest.mark.comfyui, pytest.mark.timeout(300)]

SETTING = "/settings/Outboard.UseForAll"


@pytest.fixture
def use_for_all(comfy: ComfyServer) -> Iterator[None]:
    comfy.post(SETTING, True)
    yield
    comfy.post(SETTING, False)


def run(
    comfy: ComfyServer, seed: int, file: str = FLUX.file, weight_dtype: str = "default"
) -> tuple[Outcome, str]:
    """The outcome, and what Outboard Report says of the latent."""
    graph = Graph()
    model = graph.add("UNETLoader", unet_name=file, weight_dtype=weight_dtype)
    texts = FLUX.text(graph, 1), FLUX.text(graph, 2)
    latent = sampled(graph, model, *texts, FLUX.latent(graph), seed=seed)
    saved(graph, latent, "all")
    report = graph.add("OutboardReport", latent=latent)
    done = comfy.run(graph.nodes)
    return done, done.text(report[0]) if report[0] in done.outputs else ""


def loader_in_history(comfy: ComfyServer, done: Outcome) -> str:
    prompt = comfy.get(f"/history/{done.id}")[done.id]["prompt"][2]
    return str(prompt["1"]["class_type"])


@pytest.mark.usefixtures("use_for_all")
def test_a_stock_graph_runs_in_the_engine_when_it_is_on(comfy: ComfyServer) -> None:
    done, report = run(comfy, seed=100)
    succeeded(done)
    assert "whole_loop" in report
    assert loader_in_history(comfy, done) == "OutboardUNETLoader"


def test_a_stock_graph_is_left_alone_when_it_is_off(comfy: ComfyServer) -> None:
    succeeded(run(comfy, seed=101)[0])
    comfy.post(SETTING, True)
    run(comfy, seed=101)
    comfy.post(SETTING, False)
    done, report = run(comfy, seed=101)
    assert report.startswith("No Outboard run")
    assert loader_in_history(comfy, done) == "UNETLoader"


@pytest.mark.usefixtures("use_for_all")
def test_a_file_of_another_family_stays_with_the_stock_loader(comfy: ComfyServer) -> None:
    graph = Graph()
    model = graph.add("UNETLoader", unet_name=VACE, weight_dtype="default")
    graph.add("ModelSave", model=model, filename_prefix="models/wan")
    done = succeeded(comfy.run(graph.nodes))
    assert loader_in_history(comfy, done) == "UNETLoader"


@pytest.mark.usefixtures("use_for_all")
@pytest.mark.parametrize("file", [FLUX.file, quantised.OLD_FP8])
def test_fp8_runs_in_the_engine_when_it_is_on(comfy: ComfyServer, file: str) -> None:
    done, report = run(comfy, seed=102, file=file, weight_dtype="fp8_e4m3fn")
    succeeded(done)
    if file in versions.first().lacks:
        assert loader_in_history(comfy, done) == "UNETLoader"
        return
    assert "whole_loop" in report
    assert loader_in_history(comfy, done) == "OutboardUNETLoader"


def test_the_panel_sees_the_setting(comfy: ComfyServer, use_for_all: None) -> None:
    assert comfy.get("/outboard/status")["use_for_all"] is True
