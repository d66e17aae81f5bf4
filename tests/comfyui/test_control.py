"""Heavy conditioning from a real ComfyUI: residuals that cross when they must, and skipped layers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from comfyui.families import CHROMA, FLUX2, HUNYUAN, LTX, QWEN, SD3, WAN, WAN_IMAGE
from comfyui.files import HIDDEN
from comfyui.graphs import FLUX, Graph, Link, Subject, out, sampled
from comfyui.pairs import Build, Pair

pytestmark = [pytest.mark.comfyui, pytest.mark.timeout(300)]

Compare = Callable[[Subject, Build, str], Pair]

STEPS = 5
TOKENS = FLUX.height * FLUX.width // 4
#: Of the two residuals that the stand-in's three layers share, in fp32.
RESIDUALS = 2 * TOKENS * HIDDEN * 4


def uncontrolled(graph: Graph, model: Link) -> Link:
    """Step by step for a reason that crosses nothing."""
    changed = graph.add("OutboardTestPerStep", model=model)
    return sampled(graph, changed, *FLUX.texts(graph), FLUX.latent(graph), steps=STEPS)


def controlled(kind: str) -> Build:
    def build(graph: Graph, model: Link) -> Link:
        texts = [
            graph.add("OutboardTestControl", conditioning=text, kind=kind, tokens=TOKENS, width=HIDDEN)
            for text in FLUX.texts(graph)
        ]
        # At cfg 1 there is one call of the network for each step.
        return sampled(graph, model, texts[0], texts[1], FLUX.latent(graph), steps=STEPS)

    return build


def test_residuals_cross_when_they_are_new_and_not_when_they_stay(compare: Compare) -> None:
    reports = {kind: compare(FLUX, controlled(kind), "per_step").report for kind in ("same", "fresh")}
    assert [report["forwards"] for report in reports.values()] == [STEPS, STEPS]
    crossed = {kind: report["bytes_in"] for kind, report in reports.items()}
    without = compare(FLUX, uncontrolled, "per_step").report["bytes_in"]
    # An object behind two layers crosses once.
    assert crossed["same"] - without == RESIDUALS
    assert crossed["fresh"] - without == STEPS * RESIDUALS


def test_residuals_that_are_written_to_cross_again(compare: Compare) -> None:
    report = compare(FLUX, controlled("written"), "per_step").report
    assert report["bytes_in"] > STEPS * RESIDUALS
    # One call was in vain: until then nothing had been seen to change.
    assert (report["steps"], report["forwards"]) == (STEPS, STEPS + 1)


@pytest.mark.parametrize("cfg", [1.0, 3.0])
def test_two_controlnets_in_a_chain(compare: Compare, cfg: float) -> None:
    def build(graph: Graph, model: Link) -> Link:
        positive, negative = FLUX.texts(graph)
        for strength, start, end in ((0.9, 0.0, 1.0), (0.5, 0.0, 0.6)):
            positive = graph.add(
                "ControlNetApplyAdvanced",
                positive=positive,
                negative=negative,
                control_net=graph.add("ControlNetLoader", control_net_name="tiny-controlnet.safetensors"),
                image=graph.add("OutboardTestImage", height=FLUX.height * 8, width=FLUX.width * 8),
                strength=strength,
                start_percent=start,
                end_percent=end,
            )
            negative = out(positive, 1)
        return sampled(graph, model, positive, negative, FLUX.latent(graph, batch=2), cfg=cfg)

    assert "control" in compare(FLUX, build, "per_step").report["reason"]


def test_clip_tokens_and_latents_beside_the_text_cross_once(compare: Compare) -> None:
    """In a guider that keeps the loop in ComfyUI, so that each call could bring them again."""

    def build(graph: Graph, model: Link) -> Link:
        changed = graph.add("OutboardTestPerStep", model=model)
        return sampled(graph, changed, *WAN_IMAGE.texts(graph), WAN_IMAGE.latent(graph), steps=STEPS, cfg=3.0)

    report = compare(WAN_IMAGE, build, "per_step").report
    # x with the picture's channels, fp32, and the timesteps; the text and the CLIP tokens are named.
    latent = 2 * 36 * WAN_IMAGE.frames * WAN_IMAGE.height * WAN_IMAGE.width * 4
    assert report["bytes_in"] <= report["steps"] * (latent + 64)


def test_a_reference_latent_crosses_once_and_the_rope_with_it(compare: Compare) -> None:
    def build(graph: Graph, model: Link) -> Link:
        ropes = {
            f"{kind}_{axis}": 1.1 if kind == "scale" else 0.2 for kind in ("scale", "shift") for axis in "xyt"
        }
        changed = graph.add("OutboardTestPerStep", model=graph.add("ScaleROPE", model=model, **ropes))
        reference = graph.add("OutboardTestLatent", seed=9, batch=1, channels=16, height=24, width=24)
        text = graph.add("ReferenceLatent", conditioning=FLUX.text(graph, 1), latent=reference)
        return sampled(graph, changed, text, FLUX.text(graph, 2), FLUX.latent(graph), steps=STEPS)

    without = compare(FLUX, uncontrolled, "per_step").report["bytes_in"]
    assert compare(FLUX, build, "per_step").report["bytes_in"] == without


def skipping(subject: Subject, node: str, **inputs: Any) -> Build:
    layers = {"double_layers": "0, 64", "single_layers": "1, 7"}

    def build(graph: Graph, model: Link) -> Link:
        given = {**(layers if node != "SkipLayerGuidanceSD3" else {}), **inputs}
        changed = graph.add(node, model=model, start_percent=0.0, end_percent=0.9, **given)
        texts = subject.texts(graph)
        return sampled(graph, changed, *texts, subject.latent(graph), cfg=3.0, steps=4)

    return build


SUBJECTS = (FLUX, FLUX2, CHROMA, QWEN, SD3, WAN, HUNYUAN, LTX)


@pytest.mark.parametrize("subject", SUBJECTS, ids=lambda subject: subject.kind)
def test_guidance_by_skipped_layers(compare: Compare, subject: Subject) -> None:
    build = skipping(subject, "SkipLayerGuidanceDiT", scale=2.0, rescaling_scale=0.3)
    report = compare(subject, build, "per_step").report
    assert report["reason"] == "sampler_post_cfg_function"
    assert report["forwards"] > report["steps"]


@pytest.mark.parametrize("subject", SUBJECTS, ids=lambda subject: subject.kind)
def test_a_negative_with_skipped_layers(compare: Compare, subject: Subject) -> None:
    compare(subject, skipping(subject, "SkipLayerGuidanceDiTSimple"), "per_step")


def test_guidance_by_skipped_layers_for_sd3(compare: Compare) -> None:
    compare(SD3, skipping(SD3, "SkipLayerGuidanceSD3", layers="0", scale=2.0), "per_step")


def test_skipped_layers_beside_a_controlnet(compare: Compare) -> None:
    def build(graph: Graph, model: Link) -> Link:
        layers = {"double_layers": "1", "single_layers": "0", "scale": 1.5, "rescaling_scale": 0.0}
        changed = graph.add("SkipLayerGuidanceDiT", model=model, start_percent=0.0, end_percent=1.0, **layers)
        text, negative = FLUX.texts(graph)
        text = graph.add("OutboardTestControl", conditioning=text, kind="same", tokens=TOKENS, width=HIDDEN)
        return sampled(graph, changed, text, negative, FLUX.latent(graph), cfg=3.0)

    compare(FLUX, build, "per_step")
