"""Guiders, and the stock nodes that change guidance, as whole loops."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest

from comfyui.families import WAN
from comfyui.graphs import DIGITS, FLUX, Graph, Link, Subject, sampled
from comfyui.pairs import Build, Pair, between_paths, run_one
from comfyui.server import ComfyServer

pytestmark = [pytest.mark.comfyui, pytest.mark.timeout(300)]

Compare = Callable[[Subject, Build, str], Pair]
SUBJECTS = pytest.mark.parametrize("subject", [FLUX, WAN, DIGITS], ids=lambda subject: subject.kind)


#: Few steps: trained weights under strong guidance answer rounding more with each.
STEPS = 4
#: A scale for what divides by little: at 4, trained weights make 1e-5 of the last bits of another processor.
GENTLE = 2.0


Node = tuple[str, dict[str, Any]]


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
    Case("apg", (APG,), cfg=GENTLE),
    Case("apg-momentum", (APG_MOMENTUM,), cfg=GENTLE),
    Case("tcfg", (TCFG,), cfg=GENTLE),
    Case("mahiro", (MAHIRO,)),
    Case("epsilon", (EPSILON,)),
    Case("score", (SCORE,), batch=1),
    Case("fresca", (FRESCA,)),
    Case("linear", (LINEAR,), batch=1),
    Case("triangle", (TRIANGLE,), batch=1),
    Case("perp-neg", (PERP_NEG,)),
    Case("override", (EARLY, MIDDLE)),
    Case("all", (EARLY, FRESCA, TCFG, RESCALE, ZERO_STAR, NORM, EPSILON), cfg=GENTLE),
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


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_both_paths_of_one_engine_draw_the_same(comfy: ComfyServer, case: Case) -> None:
    assert between_paths(comfy, FLUX.file, case.build(FLUX)) <= 1e-5


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
