"""LoRAs of every kind, from every node that sets them, draw what they draw in stock ComfyUI."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from comfyui import loras, quantised
from comfyui.families import SUBJECTS, WAN
from comfyui.files import lora_for
from comfyui.graphs import ERNIE, FLUX, Graph, Link, Subject, sampled, saved
from comfyui.pairs import Build, Pair, run_one, run_pair, succeeded
from comfyui.server import ComfyServer

pytestmark = [pytest.mark.comfyui, pytest.mark.timeout(300)]

Compare = Callable[[Subject, Build, str], Pair]
ONLY = "LoraLoaderModelOnly"
OURS = "OutboardLoraLoader"
BYPASS = "LoraLoaderBypassModelOnly"
#: Kinds for the bypass loader. In it, stock ComfyUI fails on GLoRA and OFT.
BESIDE = [kind for kind in loras.KINDS if kind not in ("glora", "oft")]


@pytest.fixture(scope="module", autouse=True)
def files(comfy: ComfyServer) -> None:
    loras.make(comfy.base / "models" / "loras")


def with_loras(subject: Subject, *names: tuple[str, float], node: str = ONLY, **widgets: Any) -> Build:
    """A KSampler over the loader's MODEL with LoRAs, in order."""

    def build(graph: Graph, model: Link) -> Link:
        for name, strength in names:
            model = graph.add(node, model=model, lora_name=name, strength_model=strength)
        latent = subject.latent(graph, seed=3)
        return sampled(graph, model, *subject.texts(graph), latent, **{"cfg": 2.0, "steps": 3, **widgets})

    return build


@pytest.mark.parametrize("kind", loras.KINDS)
@pytest.mark.parametrize(("name", "subject"), [("flux", FLUX), ("wan", WAN)], ids=["flux", "wan"])
def test_each_kind_of_adapter(compare: Compare, name: str, subject: Subject, kind: str) -> None:
    pair = compare(subject, with_loras(subject, (f"{name}-{kind}.safetensors", 0.8)), "whole_loop")
    weights = loras.FLUX_WEIGHTS if subject is FLUX else loras.WAN_WEIGHTS
    assert pair.report["adapted_weights"] == len(weights) * (2 if kind == "diff" else 1)


@pytest.mark.parametrize("file", ["flux-kohya", "flux-diffusers", "flux-set"])
def test_each_spelling(compare: Compare, file: str) -> None:
    compare(FLUX, with_loras(FLUX, (f"{file}.safetensors", 1.0)), "whole_loop")


def test_chained_and_negative_loras(compare: Compare) -> None:
    chain = ("flux-x.safetensors", 1.0), ("flux-dora.safetensors", -0.7), ("flux-loha.safetensors", 0.4)
    pair = compare(FLUX, with_loras(FLUX, *chain), "whole_loop")
    assert pair.report["adapters"] == 14


def test_a_lora_runs_step_by_step_alike(compare: Compare) -> None:
    build = with_loras(FLUX, ("flux-y.safetensors", 1.0), sampler_name="euler_cfg_pp")
    assert compare(FLUX, build, "per_step").report["adapted_weights"] == len(loras.FLUX_WEIGHTS)


def test_tensors_are_sent_once(comfy: ComfyServer) -> None:
    def puts() -> int:
        (engine,) = comfy.get("/outboard/status")["engines"]
        return int(engine["counters"].get("put_adapters_requests", 0))

    def sent_for(strength: float, seed: int) -> int:
        before = puts()
        build = with_loras(FLUX, ("flux-once.safetensors", strength), seed=seed)
        run_one(comfy, "OutboardUNETLoader", FLUX.file, build)
        return puts() - before

    run_one(comfy, "OutboardUNETLoader", FLUX.file, with_loras(FLUX, seed=11))
    # The names of the tensors, and then what of them is not there; nothing; the names with another strength.
    assert [sent_for(1.0, 12), sent_for(1.0, 13), sent_for(-0.3, 13)] == [2, 0, 1]


def test_a_lora_changes_the_picture_and_goes_again_without_a_trace(comfy: ComfyServer) -> None:
    full, half = ("flux-y.safetensors", 1.0), ("flux-y.safetensors", 0.5)
    # Another denoise that means the same keeps ComfyUI from answering out of its cache.
    builds = (
        with_loras(FLUX, seed=9),
        with_loras(FLUX, full, seed=9),
        with_loras(FLUX, half, seed=9),
        with_loras(FLUX, seed=9, denoise=0.99999),
    )
    plain, worn, weaker, again = (
        run_one(comfy, "OutboardUNETLoader", FLUX.file, build)[0] for build in builds
    )
    assert torch.equal(plain, again)
    assert float((worn - plain).abs().max()) > 0.01
    assert float((worn - weaker).abs().max()) > 0.01


@pytest.mark.parametrize("subject", [ERNIE, *SUBJECTS], ids=lambda subject: subject.kind)
def test_a_lora_for_each_family(comfy: ComfyServer, compare: Compare, subject: Subject) -> None:
    models = comfy.base / "models"
    name = f"{subject.kind}-one.safetensors"
    save_file(lora_for(models / "diffusion_models" / subject.file), models / "loras" / name)
    pair = compare(subject, with_loras(subject, (name, 1.0), cfg=1.0), "whole_loop")
    assert pair.report["adapted_weights"] == 1


@pytest.mark.parametrize("file", [quantised.PLAIN_FP8, quantised.OLD_FP8, quantised.MIXED])
@pytest.mark.parametrize("node", [ONLY, BYPASS])
def test_a_lora_for_a_quantised_file(compare: Compare, file: str, node: str) -> None:
    subject = replace(FLUX, file=file, kind="quantised")
    build = with_loras(FLUX, ("flux-y.safetensors", 0.8), node=node)
    assert compare(subject, build, "whole_loop").report["adapters"] == len(loras.FLUX_WEIGHTS)


def test_a_lora_for_weights_rounded_to_fp8(comfy: ComfyServer) -> None:
    pair = run_pair(comfy, FLUX.file, with_loras(FLUX, ("flux-y.safetensors", 0.8)), "fp8_e5m2")
    assert pair.difference <= FLUX.tolerance


@pytest.mark.parametrize(
    "file", [FLUX.file, ERNIE.file, quantised.OLD_FP8, *(subject.file for subject in SUBJECTS)]
)
def test_loras_name_the_same_weights_as_in_stock(comfy: ComfyServer, file: str) -> None:
    graph = Graph()
    models = [
        graph.add(loader, unet_name=file, weight_dtype="default")
        for loader in ("OutboardUNETLoader", "UNETLoader")
    ]
    keys = graph.add("OutboardTestLoraKeys", model=models[0], other=models[1])
    assert int(succeeded(comfy.run(graph.nodes)).text(keys[0])) > 20


@pytest.mark.parametrize(
    ("name", "subject", "kind"),
    [("wan", WAN, kind) for kind in BESIDE] + [("flux", FLUX, kind) for kind in BESIDE if kind != "boft"],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_bypass(compare: Compare, name: str, subject: Subject, kind: str) -> None:
    compare(subject, with_loras(subject, (f"{name}-{kind}.safetensors", 0.6), node=BYPASS), "whole_loop")


def test_a_bypassed_rotation_of_fused_layers_is_refused_by_name(comfy: ComfyServer) -> None:
    graph = Graph()
    build = with_loras(FLUX, ("flux-boft.safetensors", 0.6), node=BYPASS)
    model = graph.add("OutboardUNETLoader", unet_name=FLUX.file, weight_dtype="default")
    saved(graph, build(graph, model), "refused")
    done = comfy.run(graph.nodes)
    assert done.error is not None
    assert "a rotation cannot run beside" in done.error["exception_message"]
    assert "img_attn.qkv" in done.error["exception_message"]


def test_bypass_on_top_of_a_lora(compare: Compare) -> None:
    def build(graph: Graph, model: Link) -> Link:
        for node, name in ((ONLY, "flux-y"), (BYPASS, "flux-lokr"), (ONLY, "flux-x")):
            model = graph.add(node, model=model, lora_name=f"{name}.safetensors", strength_model=0.5)
        return sampled(graph, model, *FLUX.texts(graph), FLUX.latent(graph), cfg=2.0)

    compare(FLUX, build, "whole_loop")


def by_file(subject: Subject, *names: tuple[str, str, float]) -> Callable[[bool], Build]:
    """The same chain with our node, or with the stock one in its place."""

    def chosen(ours: bool) -> Build:
        def build(graph: Graph, model: Link) -> Link:
            for node, name, strength in names:
                used = node if ours or node != OURS else ONLY
                model = graph.add(used, model=model, lora_name=name, strength_model=strength)
            return sampled(graph, model, *subject.texts(graph), subject.latent(graph, seed=2), cfg=2.0)

        return build

    return chosen


def against_stock(
    comfy: ComfyServer, chain: Callable[[bool], Build], file: str = FLUX.file
) -> dict[str, Any]:
    """The report of our run with our node, whose latent is that of stock ComfyUI with the stock node."""
    stock, _ = run_one(comfy, "UNETLoader", file, chain(False))
    ours, report = run_one(comfy, "OutboardUNETLoader", file, chain(True))
    assert float((stock - ours).abs().max() / stock.abs().max()) <= 1e-5
    facts: dict[str, Any] = json.loads(report)
    assert facts["path"] == "whole_loop"
    return facts


@pytest.mark.parametrize("kind", loras.KINDS)
def test_a_file_is_read_by_the_engine(comfy: ComfyServer, kind: str) -> None:
    facts = against_stock(comfy, by_file(FLUX, (OURS, f"flux-{kind}.safetensors", 0.8)))
    assert facts["adapters"] == 1, "one file, and no patch"
    assert facts["adapted_weights"] == len(loras.FLUX_WEIGHTS) * (2 if kind == "diff" else 1)
    assert facts["unmatched_keys"] == []


@pytest.mark.parametrize("name", ["flux-kohya", "flux-diffusers", "flux-set"])
def test_a_file_of_each_spelling_is_read_by_the_engine(comfy: ComfyServer, name: str) -> None:
    assert against_stock(comfy, by_file(FLUX, (OURS, f"{name}.safetensors", 1.0)))["adapters"] == 1


def test_files_and_stock_loras_are_applied_in_their_order(comfy: ComfyServer) -> None:
    chain = by_file(
        FLUX,
        (ONLY, "flux-y.safetensors", 1.0),
        (OURS, "flux-dora.safetensors", 0.9),
        (ONLY, "flux-dora.safetensors", -0.5),
        (OURS, "flux-set.safetensors", 1.0),
        (OURS, "flux-glora.safetensors", 0.7),
    )
    assert against_stock(comfy, chain)["adapters"] == 15


def test_a_file_the_engine_does_not_open_is_sent_as_tensors(comfy: ComfyServer) -> None:
    facts = against_stock(comfy, by_file(FLUX, (OURS, "flux-unseen.sft", 1.0)))
    assert facts["adapters"] == facts["adapted_weights"] == len(loras.FLUX_WEIGHTS)


def test_our_node_serves_a_stock_model(comfy: ComfyServer) -> None:
    chain = by_file(FLUX, (OURS, "flux-y.safetensors", 1.0))
    ours, stock = (run_one(comfy, "UNETLoader", FLUX.file, chain(ours))[0] for ours in (True, False))
    assert torch.equal(ours, stock)


@pytest.mark.parametrize("loader", ["UNETLoader", "OutboardUNETLoader"])
def test_a_file_of_another_model_is_an_error_at_once(comfy: ComfyServer, loader: str) -> None:
    graph = Graph()
    model = graph.add(loader, unet_name=FLUX.file, weight_dtype="default")
    model = graph.add(OURS, model=model, lora_name=loras.NOTHING, strength_model=1.0)
    saved(graph, sampled(graph, model, *FLUX.texts(graph), FLUX.latent(graph)), "nothing")
    done = comfy.run(graph.nodes)
    assert done.error is not None
    assert done.error["node_type"] == OURS
    assert loras.NOTHING in done.error["exception_message"]
    assert "none of its 4 keys" in done.error["exception_message"]


def test_keys_that_match_nothing_are_shown(comfy: ComfyServer) -> None:
    graph = Graph()
    model = graph.add("OutboardUNETLoader", unet_name=FLUX.file, weight_dtype="default")
    model = graph.add(OURS, model=model, lora_name=loras.PARTLY, strength_model=1.0)
    latent = sampled(graph, model, *FLUX.texts(graph), FLUX.latent(graph), seed=77)
    report = graph.add("OutboardReport", latent=latent)
    done = succeeded(comfy.run(graph.nodes))
    text = done.text(model[0])
    assert "2 weights" in text
    assert "blocks.9.nowhere" in text
    unmatched = json.loads(done.text(report[0]))["unmatched_keys"]
    assert len(unmatched) == 4
    assert all("nowhere" in key or "mid.proj" in key for key in unmatched)


def test_two_loras_on_one_model_never_see_each_other(comfy: ComfyServer) -> None:
    """Samplers of one prompt in turn: with one LoRA, with none, with another, whole and step by step."""
    kinds: list[tuple[tuple[tuple[str, float], ...], str]] = [
        ((("flux-x.safetensors", 1.0),), "euler"),
        ((), "euler"),
        ((("flux-y.safetensors", -1.0),), "euler"),
        ((("flux-y.safetensors", 1.0),), "euler_cfg_pp"),
    ]
    turns = [
        with_loras(FLUX, *names, sampler_name=sampler, seed=seed)
        for seed, (names, sampler) in enumerate([*kinds, *reversed(kinds), kinds[0], kinds[2]])
    ]
    alone = [run_one(comfy, "OutboardUNETLoader", FLUX.file, turn)[0] for turn in turns]
    graph = Graph()
    model = graph.add("OutboardUNETLoader", unet_name=FLUX.file, weight_dtype="default")
    saves = [saved(graph, turn(graph, model), "turn")[0] for turn in turns]
    done = succeeded(comfy.run(graph.nodes))
    for save, expected in zip(saves, alone, strict=True):
        assert torch.equal(load_file(comfy.latent_path(done, save))["latent_tensor"], expected)
