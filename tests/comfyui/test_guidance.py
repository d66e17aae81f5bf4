"""Guiders, changes to guidance, and conditionings of a part of the latent or of the run, as whole loops."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest

from comfyui.families import WAN, Z_IMAGE
from comfyui.files import FILL
from comfyui.graphs import DIGITS, ERNIE, FLUX, Graph, Link, Subject, out, sampled
from comfyui.pairs import Build, Pair, run_one
from comfyui.server import ComfyServer

pytestmark = [pytest.mark.comfyui, pytest.mark.timeout(300)]

Compare = Callable[[Subject, Build, str], Pair]
Node = tuple[str, dict[str, Any]]
SUBJECTS = pytest.mark.parametrize("subject", [FLUX, WAN, DIGITS], ids=lambda subject: subject.kind)
#: Few steps: trained weights under strong guidance answer rounding more with each.
STEPS = 4


@dataclass(frozen=True)
class Case:
    """One way to guide: nodes on the MODEL, and a guider over three texts, None for a KSampler over two."""

    name: str
    nodes: tuple[Node, ...] = ()
    guider: tuple[str, dict[str, str], dict[str, Any]] | None = None
    cfg: float = 4.0
    batch: int = 2

    def build(self, subject: Subject) -> Build:
        def build(graph: Graph, model: Link) -> Link:
            for class_type, inputs in self.nodes:
                model = graph.add(class_type, model=model, **filled(graph, subject, inputs))
            texts = [subject.text(graph, seed) for seed in (1, 2, 3)]
            latent = subject.latent(graph, batch=self.batch)
            if self.guider is None:
                return sampled(graph, model, texts[0], texts[1], latent, steps=STEPS, cfg=self.cfg)
            class_type, sides, widgets = self.guider
            named = {name: texts[int(number)] for name, number in sides.items()}
            guider = graph.add(class_type, model=model, **named, **widgets)
            return custom(graph, model, guider, latent)

        return build


def filled(graph: Graph, subject: Subject, inputs: dict[str, Any]) -> dict[str, Any]:
    """The inputs with a text in place of the word TEXT."""
    return {name: subject.text(graph, 3) if value == "TEXT" else value for name, value in inputs.items()}


def custom(graph: Graph, model: Link, guider: Link, latent: Link) -> Link:
    return graph.add(
        "SamplerCustomAdvanced",
        noise=graph.add("RandomNoise", noise_seed=3),
        guider=guider,
        sampler=graph.add("KSamplerSelect", sampler_name="euler"),
        sigmas=graph.add("BasicScheduler", model=model, scheduler="simple", steps=STEPS, denoise=1.0),
        latent_image=latent,
    )


RESCALE = ("RescaleCFG", {"multiplier": 0.7})
NORM = ("CFGNorm", {"strength": 0.9})
NORM_BEFORE = ("CFGNorm", {"strength": 0.8, "pre_cfg": True})
ZERO_STAR: Node = ("CFGZeroStar", {})
APG = ("APG", {"eta": 0.5, "norm_threshold": 5.0, "momentum": 0.0})
APG_MOMENTUM = ("APG", {"eta": 0.5, "norm_threshold": 8.0, "momentum": -0.5})
TCFG: Node = ("TCFG", {})
MAHIRO: Node = ("Mahiro", {})
EPSILON = ("Epsilon Scaling", {"scaling_factor": 1.02})
SCORE = ("TemporalScoreRescaling", {"tsr_k": 0.95, "tsr_sigma": 1.0})
RENORM = ("RenormCFG", {"cfg_trunc": 0.9, "renorm_cfg": 1.0})
FRESCA = ("FreSca", {"scale_low": 1.1, "scale_high": 1.3, "freq_cutoff": 2})
LINEAR = ("VideoLinearCFGGuidance", {"min_cfg": 1.5})
TRIANGLE = ("VideoTriangleCFGGuidance", {"min_cfg": 1.5})
PERP_NEG = ("PerpNeg", {"empty_conditioning": "TEXT", "neg_scale": 0.7})
EARLY = ("CFGOverride", {"cfg": 1.0, "start_percent": 0.0, "end_percent": 0.4})
MIDDLE = ("CFGOverride", {"cfg": 6.0, "start_percent": 0.3, "end_percent": 0.7})

DUAL_SIDES = {"cond1": "0", "cond2": "1", "negative": "2"}
PERP_SIDES = {"positive": "0", "negative": "1", "empty_conditioning": "2"}
PAIR_SIDES = {"positive": "0", "negative": "1"}


def dual(style: str, first: float = 3.0, second: float = 2.0) -> tuple[str, dict[str, str], dict[str, Any]]:
    return "DualCFGGuider", DUAL_SIDES, {"cfg_conds": first, "cfg_cond2_negative": second, "style": style}


def perp(cfg: float = 3.0, scale: float = 0.8) -> tuple[str, dict[str, str], dict[str, Any]]:
    return "PerpNegGuider", PERP_SIDES, {"cfg": cfg, "neg_scale": scale}


CASES = [
    Case("rescale", (RESCALE,)),
    Case("norm", (NORM,)),
    Case("norm-before", (NORM_BEFORE,)),
    Case("zero-star", (ZERO_STAR,)),
    Case("apg", (APG,)),
    Case("apg-momentum", (APG_MOMENTUM,)),
    Case("tcfg", (TCFG,)),
    Case("mahiro", (MAHIRO,)),
    Case("epsilon", (EPSILON,)),
    Case("score", (SCORE,), batch=1),
    Case("fresca", (FRESCA,)),
    Case("linear", (LINEAR,), batch=1),
    Case("triangle", (TRIANGLE,), batch=1),
    Case("perp-neg", (PERP_NEG,)),
    Case("override", (EARLY, MIDDLE)),
    Case("all", (EARLY, FRESCA, TCFG, RESCALE, ZERO_STAR, NORM, EPSILON)),
    Case("cfg-one", (APG, TCFG, RESCALE, ZERO_STAR), cfg=1.0),
    Case("cfg-guider", guider=("CFGGuider", PAIR_SIDES, {"cfg": 3.0})),
    Case("basic-guider", (EPSILON,), guider=("BasicGuider", {"conditioning": "0"}, {})),
    Case("dual", guider=dual("regular")),
    Case("dual-nested", guider=dual("nested")),
    Case("dual-no-negative", guider=dual("regular", second=1.0)),
    Case("dual-neither", guider=dual("regular", first=1.0, second=1.0)),
    Case("dual-changed", (APG, RESCALE, NORM, MIDDLE), guider=dual("regular")),
    Case("perp", guider=perp()),
    Case("perp-no-negative", guider=perp(scale=0.0)),
    Case("perp-neither", guider=perp(cfg=1.0, scale=0.0)),
    Case("perp-changed", (APG, RESCALE, NORM, MIDDLE), guider=perp()),
]


@SUBJECTS
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_guidance_is_that_of_stock_comfyui(compare: Compare, subject: Subject, case: Case) -> None:
    assert compare(subject, case.build(subject), "whole_loop").report["steps"] == STEPS


def test_renormed_guidance(compare: Compare) -> None:
    compare(FLUX, Case("renorm", (RENORM,), batch=1).build(FLUX), "whole_loop")


@pytest.mark.parametrize("node", [LINEAR, TRIANGLE], ids=lambda node: node[0])
def test_a_scale_for_each_row_of_a_batch(compare: Compare, node: Node) -> None:
    compare(FLUX, Case("rows", (node,), batch=3).build(FLUX), "whole_loop")


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


BOTH_PATHS = [
    *((case.name, case.build(FLUX)) for case in CASES),
    *((places.name, places.build(FLUX)) for places in PLACES),
]


def per_step(build: Build) -> Build:
    """The same graph over a MODEL that must not run as a whole loop."""

    def stepping(graph: Graph, model: Link) -> Link:
        return build(graph, graph.add("OutboardTestPerStep", model=model))

    return stepping


@pytest.mark.parametrize(("name", "build"), BOTH_PATHS, ids=[name for name, _ in BOTH_PATHS])
def test_both_paths_of_one_engine_draw_the_same(comfy: ComfyServer, name: str, build: Build) -> None:
    whole, report = run_one(comfy, "OutboardUNETLoader", FLUX.file, build)
    steps, other = run_one(comfy, "OutboardUNETLoader", FLUX.file, per_step(build))
    assert json.loads(report)["path"] == "whole_loop"
    assert json.loads(other)["reason"] == "as asked"
    assert float((whole - steps).abs().max() / whole.abs().max()) <= 1e-5


@SUBJECTS
def test_a_chain_goes_on_with_leftover_noise(compare: Compare, subject: Subject) -> None:
    def build(graph: Graph, model: Link) -> Link:
        model = graph.add("APG", model=model, **APG_MOMENTUM[1])
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


def test_two_models_predict_step_by_step_each_with_its_own_account(comfy: ComfyServer) -> None:
    def over(loader: str) -> Build:
        def build(graph: Graph, model: Link) -> Link:
            other = graph.add(loader, unet_name="prefixed.safetensors", weight_dtype="default")
            widgets = {"positive": FLUX.text(graph, 1), "negative": FLUX.text(graph, 2), "cfg": 3.0}
            guider = graph.add("DualModelGuider", model=model, model_negative=other, **widgets)
            return custom(graph, model, guider, FLUX.latent(graph))

        return build

    stock, _ = run_one(comfy, "UNETLoader", FLUX.file, over("UNETLoader"))
    ours, text = run_one(comfy, "OutboardUNETLoader", FLUX.file, over("OutboardUNETLoader"))
    report = json.loads(text)
    assert (report["path"], report["reason"]) == ("per_step", "guider Guider_DualModel")
    assert (report["steps"], report["forwards"]) == (STEPS, STEPS)
    assert float((stock - ours).abs().max() / stock.abs().max()) <= FLUX.tolerance


def own(place: str) -> Node:
    return "OutboardTestGuidance", {"place": place}


@pytest.mark.parametrize(
    ("nodes", "reason"),
    [
        ((own("sampler_pre_cfg_function"),), "sampler_pre_cfg_function"),
        ((own("sampler_cfg_function"),), "sampler_cfg_function"),
        ((RESCALE, own("sampler_post_cfg_function")), "sampler_post_cfg_function"),
        ((EARLY, own("predict_noise")), "predict_noise wrapper without a name"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_code_that_is_not_stock_runs_step_by_step(
    compare: Compare, nodes: tuple[Node, ...], reason: str
) -> None:
    pair = compare(FLUX, replace(CASES[0], nodes=nodes).build(FLUX), "per_step")
    assert pair.report["reason"] == reason
