"""Several conditionings, for parts of the latent or of the run, and an inpainting model, as whole loops."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest

from comfyui.families import WAN
from comfyui.files import FILL
from comfyui.graphs import DIGITS, FLUX, Graph, Link, Subject, out, sampled
from comfyui.pairs import Build, Pair, between_paths
from comfyui.server import ComfyServer

pytestmark = [pytest.mark.comfyui, pytest.mark.timeout(300)]

Compare = Callable[[Subject, Build, str], Pair]
SUBJECTS = pytest.mark.parametrize("subject", [FLUX, WAN, DIGITS], ids=lambda subject: subject.kind)


#: Few steps: trained weights under strong guidance answer rounding more with each.
STEPS = 4


@dataclass(frozen=True)
class Places:
    """Conditionings for a part of the latent or of the run, built by `positive` and `negative`."""

    name: str
    positive: Callable[[Subject, Graph], Link]
    negative: Callable[[Subject, Graph], Link] = lambda subject, graph: subject.text(graph, 2)
    batch: int = 2
    #: Calls of the network for the first step, 0 where it does not matter.
    forwards: int = 0

    def build(self, subject: Subject, **widgets: Any) -> Build:
        def build(graph: Graph, model: Link) -> Link:
            texts = self.positive(subject, graph), self.negative(subject, graph)
            latent = subject.latent(graph, seed=4, batch=self.batch)
            settings = {"steps": STEPS, "cfg": 3.0, **widgets}
            return sampled(graph, model, *texts, latent, **settings)

        return build


def combined(graph: Graph, *texts: Link) -> Link:
    first, *others = texts
    for other in others:
        first = graph.add("ConditioningCombine", conditioning_1=first, conditioning_2=other)
    return first


def area(subject: Subject, graph: Graph, seed: int = 3, **changes: Any) -> Link:
    widgets = {"width": 64, "height": 64, "x": 32, "y": 0, "strength": 0.8, **changes}
    return graph.add("ConditioningSetArea", conditioning=subject.text(graph, seed), **widgets)


def share(subject: Subject, graph: Graph) -> Link:
    if subject.frames:
        widgets = {"width": 0.5, "height": 0.8, "temporal": 0.7, "x": 0.5, "y": 0.1, "z": 0.3}
        name = "ConditioningSetAreaPercentageVideo"
    else:
        widgets, name = {"width": 0.5, "height": 0.8, "x": 0.5, "y": 0.1}, "ConditioningSetAreaPercentage"
    return graph.add(name, conditioning=subject.text(graph, 3), strength=1.2, **widgets)


def masked(subject: Subject, graph: Graph, seed: int = 3, bounds: str = "default") -> Link:
    size = {"height": subject.height * subject.scale, "width": subject.width * subject.scale}
    mask = graph.add("OutboardTestMask", **size)
    text = subject.text(graph, seed)
    return graph.add("ConditioningSetMask", conditioning=text, mask=mask, strength=0.7, set_cond_area=bounds)


def ranged(subject: Subject, graph: Graph, seed: int, start: float, end: float) -> Link:
    text = subject.text(graph, seed)
    return graph.add("ConditioningSetTimestepRange", conditioning=text, start=start, end=end)


def averaged(subject: Subject, graph: Graph) -> Link:
    first, second = subject.text(graph, 1), subject.text(graph, 3)
    widgets = {"conditioning_to": first, "conditioning_from": second, "conditioning_to_strength": 0.3}
    return graph.add("ConditioningAverage", **widgets)


def fallback(subject: Subject, graph: Graph) -> Link:
    default = subject.text(graph, 5)
    return graph.add("ConditioningSetDefaultCombine", cond=masked(subject, graph), cond_DEFAULT=default)


PLACES = [
    Places("combine", lambda s, g: combined(g, s.text(g, 1), s.text(g, 3)), forwards=1),
    Places("combine-three", lambda s, g: combined(g, *(s.text(g, seed) for seed in (1, 3, 4)))),
    Places("average", averaged, forwards=1),
    Places("area", lambda s, g: combined(g, s.text(g, 1), area(s, g))),
    Places("area-alone", area),
    Places(
        "areas",
        lambda s, g: combined(g, area(s, g, x=0, strength=1.0), area(s, g, 4, x=16, strength=0.5)),
        lambda s, g: combined(g, s.text(g, 2), area(s, g, 6, x=8)),
    ),
    Places("area-share", lambda s, g: combined(g, s.text(g, 1), share(s, g))),
    Places("mask", lambda s, g: combined(g, s.text(g, 1), masked(s, g))),
    Places("mask-both", masked, lambda s, g: combined(g, s.text(g, 2), masked(s, g, 6))),
    Places("range", lambda s, g: combined(g, ranged(s, g, 1, 0.0, 0.5), ranged(s, g, 3, 0.5, 1.0))),
    Places("range-gap", lambda s, g: ranged(s, g, 1, 0.2, 0.8)),
    Places("range-negative", lambda s, g: s.text(g, 1), lambda s, g: ranged(s, g, 2, 0.0, 0.6)),
    Places("fallback", fallback),
    Places("fallback-unused", lambda s, g: g.add(
        "ConditioningSetDefaultCombine", cond=s.text(g, 1), cond_DEFAULT=s.text(g, 5)
    )),
    Places("rest", lambda s, g: combined(g, s.text(g, 1), area(s, g), masked(s, g), ranged(s, g, 7, 0.3, 1))),
]  # fmt: skip


@SUBJECTS
@pytest.mark.parametrize("places", PLACES, ids=lambda places: places.name)
def test_places_are_those_of_stock_comfyui(compare: Compare, subject: Subject, places: Places) -> None:
    report = compare(subject, places.build(subject), "whole_loop").report
    assert not places.forwards or report["forwards"] == places.forwards * STEPS


def test_a_mask_may_bound_the_area_of_a_picture(compare: Compare) -> None:
    places = Places("bounds", lambda s, g: combined(g, s.text(g, 1), masked(s, g, bounds="mask bounds")))
    compare(FLUX, places.build(FLUX), "whole_loop")


@pytest.mark.parametrize("places", PLACES, ids=lambda places: places.name)
def test_both_paths_of_one_engine_draw_the_same(comfy: ComfyServer, places: Places) -> None:
    assert between_paths(comfy, FLUX.file, places.build(FLUX)) <= 1e-5


@pytest.mark.parametrize("noise_mask", [True, False], ids=["masked", "whole"])
@pytest.mark.parametrize("batch", [1, 2])
def test_a_fill_model_over_a_picture(compare: Compare, batch: int, noise_mask: bool) -> None:
    fill = replace(FLUX, file=FILL, kind="fill")

    def build(graph: Graph, model: Link) -> Link:
        size = {"height": fill.height * 8, "width": fill.width * 8}
        positive, negative = fill.texts(graph)
        filling = graph.add(
            "InpaintModelConditioning",
            positive=combined(graph, positive, area(fill, graph)),
            negative=negative,
            vae=graph.add("OutboardTestVae", channels=fill.channels),
            pixels=graph.add("OutboardTestImage", **size),
            mask=graph.add("OutboardTestMask", **size),
            noise_mask=noise_mask,
        )
        latent = graph.add("RepeatLatentBatch", samples=out(filling, 2), amount=batch)
        return sampled(graph, model, filling, out(filling, 1), latent, cfg=3.0)

    compare(fill, build, "whole_loop")
