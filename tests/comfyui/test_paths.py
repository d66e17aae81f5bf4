"""Which path a graph takes, and that both draw what stock ComfyUI draws."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from comfyui.graphs import DIGITS, ERNIE, FLUX, Graph, Link, Subject, out, sampled, saved
from comfyui.pairs import Build, Pair, run_one, succeeded
from comfyui.server import ComfyServer

pytestmark = [pytest.mark.comfyui, pytest.mark.timeout(300)]

Compare = Callable[[Subject, Build, str], Pair]


def patched(class_type: str, **inputs: Any) -> Build:
    """A KSampler over the loader's MODEL with one node in between."""

    def build(graph: Graph, model: Link) -> Link:
        changed = graph.add(class_type, model=model, **inputs)
        return sampled(graph, changed, FLUX.text(graph, 1), FLUX.text(graph, 2), FLUX.latent(graph), cfg=4.0)

    return build


def custom(graph: Graph, guider: Link, sampler: Link, model: Link) -> Link:
    sigmas = graph.add("BasicScheduler", model=model, scheduler="simple", steps=5, denoise=1.0)
    noise = graph.add("RandomNoise", noise_seed=3)
    return graph.add(
        "SamplerCustomAdvanced",
        noise=noise,
        guider=guider,
        sampler=sampler,
        sigmas=sigmas,
        latent_image=FLUX.latent(graph),
    )


def test_basic_guider(compare: Compare) -> None:
    def build(graph: Graph, model: Link) -> Link:
        guider = graph.add("BasicGuider", model=model, conditioning=FLUX.text(graph, 1))
        return custom(graph, guider, graph.add("KSamplerSelect", sampler_name="euler"), model)

    compare(FLUX, build, "whole_loop")


@pytest.mark.parametrize("slot", [0, 1], ids=["output", "denoised_output"])
def test_cfg_guider(compare: Compare, slot: int) -> None:
    def build(graph: Graph, model: Link) -> Link:
        texts = {"positive": FLUX.text(graph, 1), "negative": FLUX.text(graph, 2)}
        guider = graph.add("CFGGuider", model=model, cfg=3.0, **texts)
        ancestral = graph.add("SamplerEulerAncestral", eta=0.7, s_noise=1.1)
        return out(custom(graph, guider, ancestral, model), slot)

    compare(FLUX, build, "whole_loop")


@pytest.mark.parametrize(
    ("class_type", "inputs"),
    [
        ("ModelSamplingFlux", {"max_shift": 1.15, "base_shift": 0.5, "width": 112, "height": 80}),
        ("ModelSamplingSD3", {"shift": 3.0}),
        (
            "ScaleROPE",
            {
                f"{kind}_{axis}": 1.2 if kind == "scale" else 0.3
                for kind in ("scale", "shift")
                for axis in "xyt"
            },
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_model_node_that_is_data_keeps_the_whole_loop(
    compare: Compare, class_type: str, inputs: dict[str, Any]
) -> None:
    compare(FLUX, patched(class_type, **inputs), "whole_loop")


@pytest.mark.parametrize(
    ("class_type", "inputs", "reason"),
    [
        (
            "EasyCache",
            {"reuse_threshold": 0.2, "start_percent": 0.1, "end_percent": 0.9, "verbose": False},
            "easycache",
        ),
        ("PerturbedAttentionGuidance", {"scale": 2.0}, "sampler_post_cfg_function"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_model_node_that_is_code_around_the_model_runs_step_by_step(
    compare: Compare, class_type: str, inputs: dict[str, Any], reason: str
) -> None:
    assert compare(FLUX, patched(class_type, **inputs), "per_step").report["reason"] == reason


@pytest.mark.parametrize("method", ["offset", "index", "uxo/uno"])
def test_reference_latents(compare: Compare, method: str) -> None:
    def build(graph: Graph, model: Link) -> Link:
        text = FLUX.text(graph, 1)
        for seed in (8, 9):
            latent = graph.add(
                "OutboardTestLatent", seed=seed, batch=1, channels=16, height=6 + seed, width=8
            )
            text = graph.add("ReferenceLatent", conditioning=text, latent=latent)
        text = graph.add(
            "FluxKontextMultiReferenceLatentMethod", conditioning=text, reference_latents_method=method
        )
        return sampled(graph, model, text, FLUX.text(graph, 2), FLUX.latent(graph), cfg=2.0)

    compare(FLUX, build, "whole_loop")


def test_flux_guidance_is_honoured(compare: Compare) -> None:
    def build(graph: Graph, model: Link) -> Link:
        text = graph.add("FluxGuidance", conditioning=FLUX.text(graph, 1), guidance=7.0)
        return sampled(graph, model, text, FLUX.text(graph, 2), FLUX.latent(graph))

    compare(FLUX, build, "whole_loop")


def test_a_controlnet_runs_step_by_step(compare: Compare) -> None:
    def build(graph: Graph, model: Link) -> Link:
        positive, negative = controlled(graph)
        return sampled(graph, model, positive, negative, FLUX.latent(graph), cfg=2.0)

    pair = compare(FLUX, build, "per_step")
    assert "control" in pair.report["reason"]


def controlled(graph: Graph) -> tuple[Link, Link]:
    both = graph.add(
        "ControlNetApplyAdvanced",
        positive=FLUX.text(graph, 1),
        negative=FLUX.text(graph, 2),
        control_net=graph.add("ControlNetLoader", control_net_name="tiny-controlnet.safetensors"),
        image=graph.add("OutboardTestImage", height=FLUX.height * 8, width=FLUX.width * 8),
        strength=0.9,
        start_percent=0.0,
        end_percent=1.0,
    )
    return both, out(both, 1)


# dpm_adaptive's step lengths magnify the rounding of two networks; with one network it is exact.
@pytest.mark.parametrize(
    ("subject", "sampler"),
    [(DIGITS, "euler"), (FLUX, "euler"), (ERNIE, "euler"), (FLUX, "dpm_adaptive")],
    ids=["digits", "flux", "ernie", "dpm_adaptive"],
)
def test_both_paths_draw_the_same(comfy: ComfyServer, subject: Subject, sampler: str) -> None:
    def over(path: str) -> Build:
        def build(graph: Graph, model: Link) -> Link:
            settings = graph.add("OutboardSettings", path=path)
            texts = subject.text(graph, 1), subject.text(graph, 2)
            latent = subject.latent(graph, seed=4, batch=2)
            return sampled(
                graph,
                model,
                *texts,
                latent,
                node="OutboardKSampler",
                settings=settings,
                sampler_name=sampler,
                cfg=4.0,
                denoise=0.8,
            )

        return build

    whole, report = run_one(comfy, "OutboardUNETLoader", subject.file, over("whole_loop"))
    steps, other = run_one(comfy, "OutboardUNETLoader", subject.file, over("per_step"))
    assert '"whole_loop"' in report
    assert '"as asked"' in other
    assert float((whole - steps).abs().max() / whole.abs().max()) <= 1e-5


def test_a_whole_loop_that_was_demanded_fails_with_the_reason(comfy: ComfyServer) -> None:
    graph = Graph()
    settings = graph.add("OutboardSettings", path="whole_loop")
    latent = sampled(
        graph,
        FLUX.model(graph, ours=True),
        FLUX.text(graph, 1),
        FLUX.text(graph, 2),
        FLUX.latent(graph),
        node="OutboardKSampler",
        settings=settings,
        sampler_name="euler_cfg_pp",
    )
    graph.add("SaveLatent", samples=latent, filename_prefix="x")
    done = comfy.run(graph.nodes)
    assert done.error is not None
    assert "sampler euler_cfg_pp" in done.error["exception_message"]


def test_outboard_ksampler_reports_a_stock_model(comfy: ComfyServer) -> None:
    graph = Graph()
    texts = FLUX.text(graph, 1), FLUX.text(graph, 2)
    latent = sampled(
        graph, FLUX.model(graph, ours=False), *texts, FLUX.latent(graph), node="OutboardKSampler"
    )
    report = graph.add("OutboardReport", report=out(latent, 1))
    assert "stock" in succeeded(comfy.run(graph.nodes)).text(report[0])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_engine_node_chooses_the_dtype_of_both_paths(comfy: ComfyServer, dtype: str) -> None:
    latents = {}
    for path in ("whole_loop", "per_step"):
        graph = Graph()
        engine = graph.add("OutboardEngine", address="auto", device="auto", dtype=dtype)
        model = graph.add("OutboardUNETLoader", unet_name=FLUX.file, weight_dtype="default", engine=engine)
        settings = graph.add("OutboardSettings", path=path)
        texts = FLUX.text(graph, 1), FLUX.text(graph, 2)
        latent = sampled(
            graph, model, *texts, FLUX.latent(graph), node="OutboardKSampler", settings=settings, cfg=3.0
        )
        report = graph.add("OutboardReport", latent=latent)
        save = saved(graph, latent, "dtype")
        done = succeeded(comfy.run(graph.nodes))
        assert json.loads(done.text(report[0]))["dtype"] == dtype
        latents[path] = load_file(comfy.latent_path(done, save[0]))["latent_tensor"]
    assert torch.allclose(latents["whole_loop"], latents["per_step"], rtol=0, atol=1e-4)
