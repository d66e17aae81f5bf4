"""What the engine cannot honour ends in an error that names it, and the next prompt runs."""

from __future__ import annotations

from typing import Any

import pytest

from comfyui import quantised, versions
from comfyui.families import WAN, Z_IMAGE
from comfyui.files import LTX2, VACE
from comfyui.graphs import ERNIE, FLUX, Graph, Link, Subject, sampled, saved
from comfyui.pairs import succeeded
from comfyui.server import ComfyServer

pytestmark = [pytest.mark.comfyui, pytest.mark.timeout(300)]


def refused(server: ComfyServer, graph: Graph) -> str:
    """The message that `graph` ends in; after it, an ordinary graph must run."""
    done = server.run(graph.nodes)
    assert done.error is not None, "nothing was refused"
    fine = Graph()
    texts = FLUX.text(fine, 1), FLUX.text(fine, 2)
    saved(fine, sampled(fine, FLUX.model(fine, ours=True), *texts, FLUX.latent(fine), seed=id(graph)), "fine")
    succeeded(server.run(fine.nodes))
    return str(done.error["exception_message"])


def with_model(graph: Graph, model: Link, **widgets: Any) -> Graph:
    texts = FLUX.text(graph, 1), FLUX.text(graph, 2)
    saved(graph, sampled(graph, model, *texts, FLUX.latent(graph), cfg=3.0, **widgets), "refused")
    return graph


@pytest.mark.parametrize(
    ("class_type", "inputs", "words"),
    [
        ("OutboardTestAdapter", {"how": "class"}, ("double_blocks.0.img_attn.qkv", "UnknownAdapter")),
        ("OutboardTestAdapter", {"how": "function"}, ("double_blocks.0.img_attn.qkv", "UnknownAdapter.turn")),
        ("OutboardTestAdapter", {"how": "key"}, ("model_sampling.sigmas",)),
        ("OutboardTestAdapter", {"how": "injection"}, ("injections", "strange")),
        ("ModelComputeDtype", {"dtype": "bf16"}, ("manual_cast_dtype", "ModelComputeDtype")),
        (
            "NAGuidance",
            {"nag_scale": 5.0, "nag_alpha": 0.5, "nag_tau": 1.5},
            ("attn1_output_patch", "NAGuidance"),
        ),
        ("FluxKVCache", {}, ("FluxKVCache",)),
        ("OutboardTestPatch", {"name": "dit"}, ("patches_replace", "dit", "custom node")),
        ("MultiGPU_WorkUnits", {"max_gpus": 2}, None),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_node_that_reaches_into_the_model_is_named(
    comfy: ComfyServer, class_type: str, inputs: dict[str, Any], words: tuple[str, ...] | None
) -> None:
    graph = Graph()
    changed = graph.add(class_type, model=FLUX.model(graph, ours=True), **inputs)
    if words is None:
        # Without a second GPU the node changes nothing.
        succeeded(comfy.run(with_model(graph, changed).nodes))
        return
    message = refused(comfy, with_model(graph, changed))
    assert [word for word in words if word not in message] == []
    assert "stock loader" in message


@pytest.mark.parametrize("ours_first", [True, False], ids=["ours-first", "ours-second"])
def test_a_merge_is_refused_on_either_side(comfy: ComfyServer, ours_first: bool) -> None:
    graph = Graph()
    first, second = FLUX.model(graph, ours=ours_first), FLUX.model(graph, ours=not ours_first)
    merged = graph.add("ModelMergeSimple", model1=first, model2=second, ratio=0.5)
    message = refused(comfy, with_model(graph, merged))
    assert "merge" in message
    assert "ModelMerge" in message


def test_a_merge_with_nothing_of_the_other_is_no_merge(comfy: ComfyServer) -> None:
    graph = Graph()
    first, second = FLUX.model(graph, ours=True), FLUX.model(graph, ours=False)
    merged = graph.add("ModelMergeSimple", model1=first, model2=second, ratio=1.0)
    succeeded(comfy.run(with_model(graph, merged).nodes))


def test_what_would_save_the_difference_is_refused(comfy: ComfyServer) -> None:
    graph = Graph()
    graph.add(
        "LoraSave",
        filename_prefix="loras/x",
        rank=4,
        lora_type="standard",
        bias_diff=True,
        model_diff=FLUX.model(graph, ours=True),
    )
    assert "cannot be read (LoraSave" in refused(comfy, graph)


def test_saving_is_refused(comfy: ComfyServer) -> None:
    graph = Graph()
    graph.add("ModelSave", model=FLUX.model(graph, ours=True), filename_prefix="models/x")
    assert "cannot be saved" in refused(comfy, graph)


def test_a_gguf_file_is_not_rounded_to_fp8(comfy: ComfyServer) -> None:
    graph = Graph()
    model = graph.add("OutboardUNETLoader", unet_name=quantised.GGUF, weight_dtype="fp8_e5m2")
    message = refused(comfy, with_model(graph, model))
    assert "fp8_e5m2" in message
    assert quantised.GGUF in message


@pytest.mark.parametrize(("file", "title"), [(VACE, "Wan VACE"), (LTX2, "LTX-2")])
def test_a_model_of_another_family_is_refused_and_the_queue_goes_on(
    comfy: ComfyServer, file: str, title: str
) -> None:
    graph = Graph()
    model = graph.add("OutboardUNETLoader", unet_name=file, weight_dtype="default")
    assert title in refused(comfy, with_model(graph, model))


@pytest.mark.parametrize("class_type", ["QwenImageDiffsynthControlnet", "ZImageFunControlnet"])
def test_a_controlnet_that_patches_the_model_is_named(comfy: ComfyServer, class_type: str) -> None:
    graph = Graph()
    changed = graph.add(
        class_type,
        model=FLUX.model(graph, ours=True),
        model_patch=graph.add("OutboardTestModelPatch"),
        vae=graph.add("VAELoader", vae_name="pixel_space"),
        image=graph.add("OutboardTestImage", height=64, width=64),
        strength=1.0,
    )
    message = refused(comfy, with_model(graph, changed))
    assert "double_block" in message
    assert class_type in message


def test_a_style_reference_that_patches_the_model_is_named(comfy: ComfyServer) -> None:
    graph = Graph()
    changed = graph.add(
        "USOStyleReference",
        model=FLUX.model(graph, ours=True),
        model_patch=graph.add("OutboardTestModelPatch"),
        clip_vision_output=graph.add("OutboardTestVision"),
    )
    message = refused(comfy, with_model(graph, changed))
    assert "post_input" in message
    assert "USO" in message


@pytest.mark.parametrize("subject", [Z_IMAGE, ERNIE], ids=lambda subject: subject.kind)
def test_a_model_whose_layers_cannot_be_skipped_is_named(comfy: ComfyServer, subject: Subject) -> None:
    graph = Graph()
    layers = {"double_layers": "0", "single_layers": "0", "start_percent": 0.0, "end_percent": 1.0}
    model = graph.add("SkipLayerGuidanceDiTSimple", model=subject.model(graph, ours=True), **layers)
    saved(graph, sampled(graph, model, *subject.texts(graph), subject.latent(graph), cfg=3.0), "refused")
    message = refused(comfy, graph)
    assert "no blocks that can be skipped" in message
    assert "SkipLayerGuidance" in message


@pytest.mark.parametrize(
    ("subject", "name"),
    [(WAN, "attn2_patch"), (Z_IMAGE, "noise_refiner"), (WAN, "stg_skip_self_attn"), (WAN, "audio_embeds")],
    ids=lambda value: value if isinstance(value, str) else value.kind,
)
def test_what_only_some_transformers_read_is_refused(comfy: ComfyServer, subject: Subject, name: str) -> None:
    if name in ("attn2_patch", "noise_refiner") and versions.first().old:
        pytest.skip("this ComfyUI has no transformer that reads it")
    graph = Graph()
    changed = graph.add("OutboardTestPatch", model=subject.model(graph, ours=True), name=name)
    saved(graph, sampled(graph, changed, *subject.texts(graph), subject.latent(graph)), "refused")
    assert name in refused(comfy, graph)


def test_an_engine_that_is_not_there_is_named(comfy: ComfyServer) -> None:
    graph = Graph()
    engine = graph.add("OutboardEngine", address="tcp://127.0.0.1:9", device="auto", dtype="auto")
    model = graph.add("OutboardUNETLoader", unet_name=FLUX.file, weight_dtype="default", engine=engine)
    assert "no engine answered" in refused(comfy, with_model(graph, model))


def test_an_address_that_is_none_is_named(comfy: ComfyServer) -> None:
    graph = Graph()
    engine = graph.add("OutboardEngine", address="down the hall", device="auto", dtype="auto")
    model = graph.add("OutboardUNETLoader", unet_name=FLUX.file, weight_dtype="default", engine=engine)
    assert "down the hall" in refused(comfy, with_model(graph, model))


def test_a_report_without_input_is_refused(comfy: ComfyServer) -> None:
    graph = Graph()
    graph.add("OutboardReport")
    assert "no input" in refused(comfy, graph)
