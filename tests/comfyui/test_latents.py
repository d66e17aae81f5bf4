"""What a sampler starts from: batches, pictures, masks, sizes that no patch divides."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from comfyui.graphs import DIGITS, ERNIE, FLUX, Graph, Link, Subject, sampled
from comfyui.pairs import Build, Pair

pytestmark = [pytest.mark.comfyui, pytest.mark.timeout(300)]

Compare = Callable[[Subject, Build, str], Pair]
BOTH = pytest.mark.parametrize("subject", [DIGITS, FLUX, ERNIE], ids=["digits", "flux", "ernie"])


@BOTH
def test_a_batch_of_two(compare: Compare, subject: Subject) -> None:
    def build(graph: Graph, model: Link) -> Link:
        return sampled(graph, model, *subject.texts(graph), subject.latent(graph, batch=2), cfg=4.0)

    assert compare(subject, build, "whole_loop").ours.shape[0] == 2


@BOTH
def test_a_second_pass_over_an_upscaled_latent(compare: Compare, subject: Subject) -> None:
    def build(graph: Graph, model: Link) -> Link:
        first = sampled(graph, model, *subject.texts(graph), subject.latent(graph), cfg=4.0)
        larger = graph.add("LatentUpscaleBy", samples=first, upscale_method="bilinear", scale_by=1.5)
        return sampled(graph, model, *subject.texts(graph), larger, cfg=4.0, denoise=0.5, seed=7)

    compare(subject, build, "whole_loop")


def test_a_latent_that_no_patch_divides(compare: Compare) -> None:
    def build(graph: Graph, model: Link) -> Link:
        odd = graph.add("OutboardTestLatent", seed=3, batch=1, channels=16, height=9, width=13)
        return sampled(graph, model, *FLUX.texts(graph), odd, cfg=4.0, denoise=0.7)

    compare(FLUX, build, "whole_loop")


@pytest.mark.parametrize("sampler", ["euler", "ddim", "euler_ancestral"])
@BOTH
def test_a_noise_mask(compare: Compare, subject: Subject, sampler: str) -> None:
    def build(graph: Graph, model: Link) -> Link:
        latent = subject.masked(graph)
        return sampled(graph, model, *subject.texts(graph), latent, cfg=4.0, sampler_name=sampler)

    compare(subject, build, "whole_loop")


@pytest.mark.parametrize("strength", [1.0, 0.6])
def test_differential_diffusion(compare: Compare, strength: float) -> None:
    def build(graph: Graph, model: Link) -> Link:
        gradual = graph.add("DifferentialDiffusion", model=model, strength=strength)
        return sampled(graph, gradual, *FLUX.texts(graph), FLUX.masked(graph), cfg=4.0, steps=8)

    compare(FLUX, build, "whole_loop")


def test_a_split_between_two_advanced_samplers(compare: Compare) -> None:
    def build(graph: Graph, model: Link) -> Link:
        first = advanced(graph, model, FLUX.latent(graph), start=0, end=3, noise="enable", leftover="enable")
        return advanced(graph, model, first, start=3, end=6, noise="disable", leftover="disable")

    compare(FLUX, build, "whole_loop")


def advanced(
    graph: Graph, model: Link, latent: Link, *, start: int, end: int, noise: str, leftover: str
) -> Link:
    positive, negative = FLUX.texts(graph)
    return graph.add(
        "KSamplerAdvanced",
        model=model,
        add_noise=noise,
        noise_seed=11,
        steps=6,
        cfg=2.0,
        sampler_name="euler",
        scheduler="simple",
        positive=positive,
        negative=negative,
        latent_image=latent,
        start_at_step=start,
        end_at_step=end,
        return_with_leftover_noise=leftover,
    )
