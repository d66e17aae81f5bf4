"""LoRA hooks on conditionings run step by step, each call with the patches ComfyUI would have then."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from comfyui import loras
from comfyui.graphs import FLUX, Graph, Link, Subject, out, sampled
from comfyui.pairs import Build, Pair, run_one
from comfyui.server import ComfyServer

pytestmark = [pytest.mark.comfyui, pytest.mark.timeout(300)]

Compare = Callable[[Subject, Build, str], Pair]
Hooks = Callable[[Graph], Link]


@pytest.fixture(scope="module", autouse=True)
def files(comfy: ComfyServer) -> None:
    loras.make(comfy.base / "models" / "loras")


def hook(name: str = "flux-y", strength: float = 1.0) -> Hooks:
    """A LoRA as a hook."""

    def build(graph: Graph) -> Link:
        file = f"{name}.safetensors"
        return graph.add("CreateHookLoraModelOnly", lora_name=file, strength_model=strength)

    return build


def keyed(hooks: Hooks, *frames: tuple[float, float]) -> Hooks:
    """`hooks` with keyframes: (start in percent, strength)."""

    def build(graph: Graph) -> Link:
        last: dict[str, Any] = {}
        for start, strength in frames:
            frame = graph.add("CreateHookKeyframe", strength_mult=strength, start_percent=start, **last)
            last = {"prev_hook_kf": frame}
        return graph.add("SetHookKeyframes", hooks=hooks(graph), hook_kf=last["prev_hook_kf"])

    return build


def both(one: Hooks, other: Hooks) -> Hooks:
    return lambda graph: graph.add("CombineHooks2", hooks_A=one(graph), hooks_B=other(graph))


def properties(graph: Graph, hooks: Link, positive: Link, negative: Link, **more: Any) -> tuple[Link, Link]:
    pair = graph.add(
        "PairConditioningSetProperties",
        positive_NEW=positive,
        negative_NEW=negative,
        strength=1.0,
        set_cond_area="default",
        hooks=hooks,
        **more,
    )
    return pair, out(pair, 1)


def hooked(hooks: Hooks, *, base: str = "", **widgets: Any) -> Build:
    """A KSampler with `hooks` on both of its conditionings, over a MODEL with the LoRA `base`."""

    def build(graph: Graph, model: Link) -> Link:
        if base:
            model = graph.add("LoraLoaderModelOnly", model=model, lora_name=base, strength_model=0.5)
        texts = properties(graph, hooks(graph), *FLUX.texts(graph))
        return sampled(graph, model, *texts, FLUX.latent(graph, seed=6), **{"cfg": 3.0, **widgets})

    return build


FRAMES = (0.0, 1.0), (0.3, -0.5), (0.7, 0.0)


@pytest.mark.parametrize(
    "hooks",
    [
        hook(),
        hook("flux-loha", -0.6),
        keyed(hook(), *FRAMES),
        both(keyed(hook(), *FRAMES), hook("flux-x", 0.8)),
        both(keyed(hook(), *FRAMES), keyed(hook("flux-lokr"), (0.0, 0.0), (0.5, 1.0))),
    ],
    ids=["plain", "negative", "keyframes", "combined", "two-schedules"],
)
def test_hooks(compare: Compare, hooks: Hooks) -> None:
    report = compare(FLUX, hooked(hooks), "per_step").report
    assert "hooks" in report["reason"]
    assert report["adapted_weights"] >= 2


def test_hooks_over_a_lora(compare: Compare) -> None:
    hooks = keyed(hook(), *FRAMES)
    compare(FLUX, hooked(hooks, base="flux-dora.safetensors", sampler_name="heun"), "per_step")


def test_hooks_on_one_side_only(compare: Compare) -> None:
    def build(graph: Graph, model: Link) -> Link:
        positive = graph.add(
            "ConditioningSetProperties",
            cond_NEW=FLUX.text(graph, 1),
            strength=1.0,
            set_cond_area="default",
            hooks=hook()(graph),
        )
        return sampled(graph, model, positive, FLUX.text(graph, 2), FLUX.latent(graph, seed=6), cfg=3.0)

    compare(FLUX, build, "per_step")


def test_masked_hooks_with_a_default(compare: Compare) -> None:
    """One LoRA where a mask is, another where the rest is."""

    def build(graph: Graph, model: Link) -> Link:
        mask = graph.add("OutboardTestMask", height=FLUX.height * 8, width=FLUX.width * 8)
        first = properties(graph, keyed(hook(), *FRAMES)(graph), *FLUX.texts(graph), mask=mask)
        pair = graph.add(
            "PairConditioningSetDefaultCombine",
            positive=first[0],
            negative=first[1],
            positive_DEFAULT=FLUX.text(graph, 3),
            negative_DEFAULT=FLUX.text(graph, 4),
            hooks=hook("flux-x", 0.7)(graph),
        )
        return sampled(graph, model, pair, out(pair, 1), FLUX.latent(graph, seed=6), cfg=3.0)

    compare(FLUX, build, "per_step")


def test_a_model_as_a_hook(compare: Compare) -> None:
    def hooks(graph: Graph) -> Link:
        made = graph.add("CreateHookModelAsLoraModelOnly", ckpt_name="other.safetensors", strength_model=0.4)
        return keyed(lambda _: made, *FRAMES)(graph)

    compare(FLUX, hooked(hooks, base="flux-y.safetensors"), "per_step")


def test_hooks_leave_nothing_behind(comfy: ComfyServer) -> None:
    def plain(denoise: float) -> Build:
        def build(graph: Graph, model: Link) -> Link:
            return sampled(
                graph, model, *FLUX.texts(graph), FLUX.latent(graph), seed=8, cfg=2.0, denoise=denoise
            )

        return build

    before, _ = run_one(comfy, "OutboardUNETLoader", FLUX.file, plain(1.0))
    run_one(comfy, "OutboardUNETLoader", FLUX.file, hooked(keyed(hook(), *FRAMES), seed=8))
    after, _ = run_one(comfy, "OutboardUNETLoader", FLUX.file, plain(0.99999))
    assert torch.equal(before, after)
