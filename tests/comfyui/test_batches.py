"""Batches, and runs that go on where another left off, as whole loops."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from comfyui.families import WAN, Z_IMAGE
from comfyui.graphs import DIGITS, ERNIE, FLUX, Graph, Link, Subject, sampled
from comfyui.pairs import Build, Pair

pytestmark = [pytest.mark.comfyui, pytest.mark.timeout(300)]

Compare = Callable[[Subject, Build, str], Pair]
#: Few steps: trained weights under strong guidance answer rounding more with each.
STEPS = 4


@pytest.mark.parametrize("subject", [FLUX, WAN, DIGITS], ids=lambda subject: subject.kind)
def test_a_chain_goes_on_with_leftover_noise(compare: Compare, subject: Subject) -> None:
    def build(graph: Graph, model: Link) -> Link:
        model = graph.add("APG", model=model, eta=0.5, norm_threshold=8.0, momentum=-0.5)
        texts = subject.texts(graph)
        shared = {"node": "KSamplerAdvanced", "steps": 6, "cfg": 3.0, "noise_seed": 5}
        first = advanced(graph, model, texts, subject.latent(graph, batch=2), 0, 3, **shared)
        return advanced(graph, model, texts, first, 3, 10, **shared)

    compare(subject, build, "whole_loop")


def advanced(
    graph: Graph, model: Link, texts: tuple[Link, Link], latent: Link, start: int, end: int, **widgets: Any
) -> Link:
    settings = {
        "add_noise": "enable" if start == 0 else "disable",
        "start_at_step": start,
        "end_at_step": end,
        "return_with_leftover_noise": "enable" if end < 6 else "disable",
        "sampler_name": "euler",
        "scheduler": "simple",
        **widgets,
    }
    node = settings.pop("node")
    return graph.add(node, model=model, positive=texts[0], negative=texts[1], latent_image=latent, **settings)


def test_a_second_pass_over_a_larger_latent(compare: Compare) -> None:
    def build(graph: Graph, model: Link) -> Link:
        texts = FLUX.texts(graph)
        first = sampled(graph, model, *texts, FLUX.latent(graph), cfg=3.0)
        size = {"width": FLUX.width * 16, "height": FLUX.height * 16}
        larger = graph.add("LatentUpscale", samples=first, upscale_method="bilinear", crop="disabled", **size)
        return sampled(graph, model, *texts, larger, cfg=3.0, denoise=0.5, steps=6)

    compare(FLUX, build, "whole_loop")


@pytest.mark.parametrize("subject", [Z_IMAGE, ERNIE, FLUX], ids=lambda subject: subject.kind)
def test_texts_of_two_lengths_share_a_call_where_that_is_exact(compare: Compare, subject: Subject) -> None:
    def build(graph: Graph, model: Link) -> Link:
        texts = subject.text(graph, 1, tokens=11), subject.text(graph, 2, tokens=70)
        return sampled(graph, model, *texts, subject.latent(graph, batch=2), cfg=4.0, steps=STEPS)

    report = compare(subject, build, "whole_loop").report
    assert report["forwards"] == STEPS * (2 if subject is FLUX else 1)


@pytest.mark.parametrize("strength", [1.0, 0.6])
def test_differential_diffusion_of_a_batch(compare: Compare, strength: float) -> None:
    def build(graph: Graph, model: Link) -> Link:
        model = graph.add("DifferentialDiffusion", model=model, strength=strength)
        mask = graph.add("OutboardTestMask", height=FLUX.height * 8, width=FLUX.width * 8)
        latent = graph.add("SetLatentNoiseMask", samples=FLUX.latent(graph, seed=5, batch=2), mask=mask)
        return sampled(graph, model, *FLUX.texts(graph), latent, cfg=3.0)

    compare(FLUX, build, "whole_loop")


def test_a_batch_of_chosen_rows(compare: Compare) -> None:
    """LatentFromBatch keeps the rows' places, by which their noise is made."""

    def build(graph: Graph, model: Link) -> Link:
        latent = FLUX.latent(graph, seed=4, batch=4)
        chosen = graph.add("LatentFromBatch", samples=latent, batch_index=1, length=2)
        return sampled(graph, model, *FLUX.texts(graph), chosen, cfg=3.0, denoise=0.8)

    assert compare(FLUX, build, "whole_loop").ours.shape[0] == 2
