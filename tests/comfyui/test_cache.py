"""The step cache from a graph: with any sampler, on both paths, and never when it is off."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from comfyui.graphs import DIGITS, Graph, Link, out, sampled, saved
from comfyui.pairs import succeeded
from comfyui.server import ComfyServer
from comfyui.test_nodes import picture
from outboard.engine.demo.judge import read_all
from outboard.engine.sampling.samplers import SAMPLERS

pytestmark = [pytest.mark.comfyui, pytest.mark.timeout(300)]

STEPS, DIGIT = 28, 3


class Drawn:
    """What a graph made: its latent, its report, its pictures as the judge reads them, the sampler's line."""

    def __init__(self, server: ComfyServer, graph: Graph, latent: Link) -> None:
        save = saved(graph, latent, "cache")
        report = graph.add("OutboardReport", latent=latent)
        pictures = graph.add("OutboardDigitDecode", samples=latent)
        image = graph.add("SaveImage", images=pictures, filename_prefix="cache")
        done = succeeded(server.run(graph.nodes))
        self.latent = load_file(server.latent_path(done, save[0]))["latent_tensor"]
        self.report: dict[str, Any] = json.loads(done.text(report[0]))
        places = done.outputs[image[0]]["images"]
        self.readings = read_all(torch.stack([picture(server.base / "output", place) for place in places]))
        entries = server.get("/outboard/status")["reports"]
        self.line: str = next(entry["line"] for entry in entries if entry["node"] == latent[0])

    @property
    def cache(self) -> dict[str, Any]:
        found: dict[str, Any] = self.report["cache"]
        return found

    @property
    def decisions(self) -> Any:
        return self.cache["computed"], self.cache["reused"]


def draw(
    server: ComfyServer,
    *,
    settings: dict[str, Any] | None = None,
    per_step: bool = False,
    node: str = "KSampler",
    **widgets: Any,
) -> Drawn:
    graph = Graph()
    model = DIGITS.model(graph, ours=True)
    if settings is not None:
        model = graph.add("OutboardCacheSettings", model=model, **settings)
    if per_step:
        model = graph.add("OutboardTestPerStep", model=model)
    texts = DIGITS.text(graph, DIGIT), graph.add("OutboardDigitPrompt", digit="empty")
    latent = DIGITS.latent(graph, batch=2)
    return Drawn(
        server,
        graph,
        sampled(graph, model, *texts, latent, **{"steps": STEPS, "cfg": 3.0, **widgets}, node=node),
    )


@pytest.fixture(scope="module")
def plain(comfy: ComfyServer) -> Drawn:
    """Before any cache was there."""
    return draw(comfy)


def test_balanced_reuses_steps_and_still_draws_the_digit(comfy: ComfyServer, plain: Drawn) -> None:
    drawn = draw(comfy, settings={"preset": "balanced"})
    reused = drawn.report["steps_reused"]
    assert reused >= 8
    assert f" · {reused} of {STEPS} steps reused · " in drawn.line
    assert drawn.report["path"] == "whole_loop"
    assert drawn.cache["preset"] == "balanced"
    assert sum(drawn.cache["reused"]) == 4 * reused
    assert len(drawn.cache["hit_rates"]) == 2
    assert drawn.cache["saving"] == pytest.approx(drawn.cache["saving_predicted"], abs=0.2)
    assert drawn.cache["saving"] > 0.25
    assert not torch.equal(drawn.latent, plain.latent)
    assert all(reading.is_digit(DIGIT) for reading in drawn.readings)


@pytest.mark.parametrize(
    "settings",
    [
        {"preset": "quality"},
        {"preset": "custom", "Fn_compute_blocks": 1, "max_warmup_steps": 4, "residual_diff_threshold": 0.3},
        {"preset": "balanced", "taylorseer_order": "2"},
    ],
    ids=["quality", "threshold", "taylor"],
)
def test_both_paths_decide_alike(comfy: ComfyServer, settings: dict[str, Any]) -> None:
    whole, stepped = draw(comfy, settings=settings), draw(comfy, settings=settings, per_step=True)
    assert (whole.report["path"], stepped.report["path"]) == ("whole_loop", "per_step")
    assert whole.report["steps_reused"] > 3
    assert whole.decisions == stepped.decisions
    difference = (whole.latent - stepped.latent).abs().max() / whole.latent.abs().max()
    assert float(difference) <= 1e-4
    assert [point["step"] for point in whole.cache["residuals"]] == [
        point["step"] for point in stepped.cache["residuals"]
    ]


def test_off_equals_never(comfy: ComfyServer, plain: Drawn) -> None:
    draw(comfy, settings={"preset": "fast"})
    off = draw(comfy, settings={"preset": "off"})
    assert torch.equal(off.latent, plain.latent)
    assert off.report["cache"] is None
    assert "reused" not in off.line


def test_the_samplers_own_widgets_come_before_the_models_settings(comfy: ComfyServer, plain: Drawn) -> None:
    on = draw(
        comfy, settings={"preset": "off"}, node="OutboardKSampler", enable_cache=True, cache_mode="fast"
    )
    assert on.cache["preset"] == "fast"
    left = draw(comfy, settings={"preset": "quality"}, node="OutboardKSampler", enable_cache=False)
    assert left.cache["preset"] == "quality"
    never = draw(comfy, node="OutboardKSampler")
    assert torch.equal(never.latent, plain.latent)


def test_the_new_widgets_are_the_last(comfy: ComfyServer) -> None:
    inputs = comfy.get("/object_info/OutboardKSampler")["OutboardKSampler"]["input"]
    assert list(inputs["optional"]) == ["settings", "enable_cache", "cache_mode"]
    assert inputs["optional"]["enable_cache"][1]["default"] is False


@pytest.mark.parametrize("per_step", [False, True], ids=["whole", "stepped"])
def test_fresh_noise_is_not_cached_unless_forced(comfy: ComfyServer, per_step: bool) -> None:
    sampler: dict[str, Any] = {"sampler_name": "euler_ancestral", "per_step": per_step, "steps": 12}
    drawn = draw(comfy, settings={"preset": "balanced"}, **sampler)
    assert drawn.report["steps_reused"] == 0
    assert "fresh noise" in drawn.cache["notes"][0]
    assert " · step cache off · " in drawn.line
    forced = draw(comfy, settings={"preset": "balanced", "force": True}, **sampler)
    assert forced.report["steps_reused"] > 0
    assert "fresh noise" in forced.cache["notes"][0]


def test_a_sampler_that_the_engine_lacks_is_cached_too(comfy: ComfyServer) -> None:
    assert "euler_cfg_pp" not in SAMPLERS
    drawn = draw(comfy, settings={"preset": "balanced"}, sampler_name="euler_cfg_pp", cfg=1.5)
    assert drawn.report["path"] == "per_step"
    assert drawn.report["steps_reused"] >= 8


def test_another_cache_around_the_model_stays_alone(comfy: ComfyServer) -> None:
    graph = Graph()
    model = graph.add(
        "OutboardCacheSettings", model=DIGITS.model(graph, ours=True), preset="fast", force=True
    )
    limits = {"reuse_threshold": 0.2, "start_percent": 0.1, "end_percent": 0.9, "verbose": False}
    easy = graph.add("EasyCache", model=model, **limits)
    texts = DIGITS.text(graph, DIGIT), graph.add("OutboardDigitPrompt", digit="empty")
    drawn = Drawn(comfy, graph, sampled(graph, easy, *texts, DIGITS.latent(graph), steps=12, cfg=3.0))
    assert "easycache" in drawn.cache["notes"][0]
    assert drawn.cache["values"] == {}


def test_two_passes_and_a_mask_are_runs_of_their_own(comfy: ComfyServer) -> None:
    graph = Graph()
    model = graph.add("OutboardCacheSettings", model=DIGITS.model(graph, ours=True), preset="balanced")
    texts = DIGITS.text(graph, DIGIT), graph.add("OutboardDigitPrompt", digit="empty")
    first = sampled(graph, model, *texts, DIGITS.latent(graph), steps=16, cfg=3.0)
    larger = graph.add(
        "LatentUpscale", samples=first, upscale_method="nearest-exact", width=64, height=64, crop="disabled"
    )
    size = {"height": 64, "width": 64}
    masked = graph.add("SetLatentNoiseMask", samples=larger, mask=graph.add("OutboardTestMask", **size))
    again = sampled(graph, model, *texts, masked, steps=16, cfg=3.0, denoise=0.6)
    drawn = Drawn(comfy, graph, again)
    assert drawn.report["steps_reused"] > 2
    assert drawn.cache["steps"] == 16


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"preset": "balanced", "scm_preset": "fast", "scm_compute_bins": "2,1"}, "more than one mask"),
        ({"preset": "custom", "scm_compute_bins": "two"}, "whole numbers"),
        ({"preset": "custom", "Fn_compute_blocks": 0}, "at least 1 runs"),
        ({"preset": "custom", "Fn_compute_blocks": 500}, "leave none of the model's"),
        (
            {"preset": "custom", "Fn_compute_blocks": 1, "steps_computation_mask": "1,0,1"},
            "is for 3 steps",
        ),
    ],
)
def test_what_cannot_be_is_an_error_before_sampling(
    comfy: ComfyServer, inputs: dict[str, Any], message: str
) -> None:
    graph = Graph()
    model = graph.add("OutboardCacheSettings", model=DIGITS.model(graph, ours=True), **inputs)
    latent = sampled(graph, model, *DIGITS.texts(graph), DIGITS.latent(graph))
    graph.add("SaveLatent", samples=latent, filename_prefix="never")
    done = comfy.run(graph.nodes)
    assert done.error is not None
    assert message in done.error["exception_message"]


def test_a_model_of_the_stock_loader_is_refused(comfy: ComfyServer) -> None:
    graph = Graph()
    model = graph.add("OutboardCacheSettings", model=DIGITS.model(graph, ours=False), preset="fast")
    saved(graph, sampled(graph, model, *DIGITS.texts(graph), DIGITS.latent(graph)), "never")
    done = comfy.run(graph.nodes)
    assert done.error is not None
    assert "does not come from an Outboard loader" in done.error["exception_message"]


def test_advanced_samplers_take_the_settings_too(comfy: ComfyServer) -> None:
    graph = Graph()
    model = graph.add("OutboardCacheSettings", model=DIGITS.model(graph, ours=True), preset="fast")
    guider = graph.add("BasicGuider", model=model, conditioning=DIGITS.text(graph, DIGIT))
    sampler = graph.add("KSamplerSelect", sampler_name="heun")
    sigmas = graph.add("BasicScheduler", model=model, scheduler="simple", steps=20, denoise=1.0)
    noise = graph.add("RandomNoise", noise_seed=3)
    latent = graph.add(
        "SamplerCustomAdvanced",
        noise=noise,
        guider=guider,
        sampler=sampler,
        sigmas=sigmas,
        latent_image=DIGITS.latent(graph),
    )
    drawn = Drawn(comfy, graph, out(latent, 1))
    assert drawn.cache["steps"] == 20
    assert drawn.report["forwards"] > 20
    assert sum(drawn.cache["reused"]) > 5
