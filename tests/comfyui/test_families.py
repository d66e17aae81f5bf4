"""Every family of the engine draws in ComfyUI what stock ComfyUI draws."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from comfyui import versions
from comfyui.families import (
    FLUX2,
    HUNYUAN,
    LTX,
    QWEN,
    QWEN_2511,
    SUBJECTS,
    WAN,
    WAN_5B,
    WAN_HIGH,
    WAN_IMAGE,
    WAN_INPAINT_5B,
    WAN_LOW,
    Z_IMAGE,
)
from comfyui.graphs import Graph, Link, Subject, sampled
from comfyui.pairs import Build, Pair

pytestmark = [pytest.mark.comfyui, pytest.mark.timeout(300)]

Compare = Callable[[Subject, Build, str], Pair]
EVERY = pytest.mark.parametrize("subject", SUBJECTS, ids=lambda subject: subject.kind)
#: Models that see the kept part of an inpaint without noise, which only ComfyUI's own loop does.
CLEAN = {WAN_5B.kind, WAN_INPAINT_5B.kind, HUNYUAN.kind, LTX.kind}


def over(subject: Subject, batch: int = 1, seed: int = 0, **widgets: Any) -> Build:
    def build(graph: Graph, model: Link) -> Link:
        latent = subject.latent(graph, seed=seed, batch=batch)
        return sampled(graph, model, *subject.texts(graph), latent, steps=4, **widgets)

    return build


SAMPLERS = [(sampler, cfg) for sampler in ("euler", "uni_pc", "res_multistep") for cfg in (1.0, 4.0)]
FEW = [("euler", 4.0), ("uni_pc", 1.0), ("res_multistep", 4.0)]
#: Two of the families that stock ComfyUI detects without help run under all of them.
CASES = [
    pytest.param(subject, sampler, cfg, id=f"{subject.kind}-{sampler}-{cfg:g}")
    for subject in SUBJECTS
    for sampler, cfg in (SAMPLERS if subject in (FLUX2, WAN, WAN_IMAGE, WAN_HIGH) else FEW)
]


@pytest.mark.parametrize(("subject", "sampler", "cfg"), CASES)
def test_a_family_gives_the_latent_of_stock_comfyui(
    compare: Compare, subject: Subject, sampler: str, cfg: float
) -> None:
    compare(subject, over(subject, sampler_name=sampler, cfg=cfg), "whole_loop")


@EVERY
def test_a_batch_of_two(compare: Compare, subject: Subject) -> None:
    assert compare(subject, over(subject, batch=2, cfg=4.0), "whole_loop").ours.shape[0] == 2


@EVERY
def test_a_picture_half_denoised(compare: Compare, subject: Subject) -> None:
    compare(subject, over(subject, seed=9, cfg=4.0, denoise=0.5), "whole_loop")


@EVERY
def test_a_noise_mask(compare: Compare, subject: Subject) -> None:
    def build(graph: Graph, model: Link) -> Link:
        return sampled(graph, model, *subject.texts(graph), subject.masked(graph), cfg=4.0)

    pair = compare(subject, build, "per_step" if subject.kind in CLEAN else "whole_loop")
    assert pair.report["reason"] == ("inpaint scaling of this model" if subject.kind in CLEAN else "")


@EVERY
def test_step_by_step(compare: Compare, subject: Subject) -> None:
    pair = compare(subject, over(subject, sampler_name="euler_cfg_pp", cfg=4.0), "per_step")
    assert pair.report["reason"] == "sampler euler_cfg_pp"


METHODS = [
    (subject, method)
    for subject in (QWEN, QWEN_2511, FLUX2)
    for method in ("", "index", "offset", "uxo/uno", "index_timestep_zero")
    if subject is not FLUX2 or method != "index_timestep_zero"
]


@pytest.mark.parametrize(("subject", "method"), METHODS, ids=lambda value: getattr(value, "kind", value))
def test_reference_latents(compare: Compare, subject: Subject, method: str) -> None:
    if method == "index_timestep_zero" and versions.first().old:
        with pytest.raises(AssertionError, match="has no reference method"):
            compare(subject, referring(subject, method), "whole_loop")
        return
    compare(subject, referring(subject, method), "whole_loop")


def referring(subject: Subject, method: str) -> Build:
    def build(graph: Graph, model: Link) -> Link:
        text, negative = subject.texts(graph)
        for seed in (8, 9):
            size = {"channels": subject.channels, "height": 6 + seed, "width": 8}
            # Qwen-Image's VAE gives pictures of one frame, and an old ComfyUI takes no others.
            frames = 1 if versions.first().old else subject.frames
            latent = graph.add("OutboardTestLatent", seed=seed, batch=1, frames=frames, **size)
            text = graph.add("ReferenceLatent", conditioning=text, latent=latent)
        if method:
            name = "FluxKontextMultiReferenceLatentMethod"
            text = graph.add(name, conditioning=text, reference_latents_method=method)
        return sampled(graph, model, text, negative, subject.latent(graph), cfg=2.0)

    return build


@pytest.mark.parametrize("subject", [FLUX2, WAN, Z_IMAGE], ids=lambda subject: subject.kind)
def test_a_scaled_rope(compare: Compare, subject: Subject) -> None:
    def build(graph: Graph, model: Link) -> Link:
        sizes = {
            f"{kind}_{axis}": value for kind, value in (("scale", 1.2), ("shift", 0.3)) for axis in "xyt"
        }
        scaled = graph.add("ScaleROPE", model=model, **sizes)
        return sampled(graph, scaled, *subject.texts(graph), subject.latent(graph), cfg=3.0)

    compare(subject, build, "whole_loop")


def test_a_masked_prompt_of_hunyuan_video(compare: Compare) -> None:
    """At cfg 1 and a batch of one: for more rows this mask fails in stock ComfyUI."""
    subject = replace(HUNYUAN, words=6)
    compare(subject, over(subject), "whole_loop")


def test_a_frame_rate(compare: Compare) -> None:
    def build(graph: Graph, model: Link) -> Link:
        positive, negative = LTX.texts(graph)
        both = graph.add("LTXVConditioning", positive=positive, negative=negative, frame_rate=12.0)
        return sampled(graph, model, both, [both[0], 1], LTX.latent(graph), cfg=3.0)

    compare(LTX, build, "whole_loop")


def test_frames_with_a_noise_level_of_their_own_run_step_by_step(compare: Compare) -> None:
    def build(graph: Graph, model: Link) -> Link:
        mask = graph.add("OutboardTestMask", height=LTX.height, width=LTX.width)
        texts = [
            graph.add("OutboardTestConcatMask", conditioning=text, mask=mask, frames=LTX.frames)
            for text in LTX.texts(graph)
        ]
        return sampled(graph, model, texts[0], texts[1], LTX.latent(graph), cfg=3.0)

    assert "each frame" in compare(LTX, build, "per_step").report["reason"]


def test_a_model_for_high_noise_hands_over_to_one_for_low(compare: Compare) -> None:
    def build(graph: Graph, model: Link) -> Link:
        loader = graph.nodes[model[0]]["class_type"]
        low = graph.add(loader, unet_name=WAN_LOW, weight_dtype="default")
        both = [graph.add("ModelSamplingSD3", model=one, shift=8.0) for one in (model, low)]
        first = half(graph, both[0], WAN_HIGH.latent(graph), first=True)
        return half(graph, both[1], first, first=False)

    compare(WAN_HIGH, build, "whole_loop")


def half(graph: Graph, model: Link, latent: Link, *, first: bool) -> Link:
    """The first or the second three of six steps."""
    positive, negative = WAN_HIGH.texts(graph)
    return graph.add(
        "KSamplerAdvanced",
        model=model,
        add_noise="enable" if first else "disable",
        noise_seed=11,
        steps=6,
        cfg=3.5,
        sampler_name="euler",
        scheduler="simple",
        positive=positive,
        negative=negative,
        latent_image=latent,
        start_at_step=0 if first else 3,
        end_at_step=3 if first else 10000,
        return_with_leftover_noise="enable" if first else "disable",
    )
