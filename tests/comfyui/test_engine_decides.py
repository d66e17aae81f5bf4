"""Nodes that choose how ComfyUI computes change nothing, fail nothing, and are remarked upon once."""

from __future__ import annotations

from pathlib import Path

import pytest

from comfyui import files, shapes
from comfyui.graphs import FLUX, Graph, Link, sampled, saved
from comfyui.pairs import succeeded
from comfyui.server import ComfyServer
from comfyui.test_skeleton import probe

pytestmark = [pytest.mark.comfyui, pytest.mark.timeout(300)]

PROBE = Path(__file__).with_name("devices_probe.py")
SAID = {
    "TorchCompileModel": ({"backend": "inductor"}, "TorchCompileModel has no effect"),
    "ModelAttentionBackend": ({"attention": "pytorch attention"}, "chosen by ModelAttentionBackend has no"),
    "SelectModelDevice": ({"device": "cpu"}, "chosen by SelectModelDevice has no effect"),
}


@pytest.mark.parametrize("class_type", SAID)
def test_a_node_without_effect_is_remarked_upon_once(comfy: ComfyServer, class_type: str) -> None:
    if class_type not in comfy.get("/object_info"):
        pytest.skip(f"this ComfyUI has no {class_type}")
    given, words = SAID[class_type]
    for seed in (300, 301):
        graph = Graph()
        model = graph.add(class_type, model=FLUX.model(graph, ours=True), **given)
        latent = latent_of(graph, model, seed)
        report = graph.add("OutboardReport", latent=latent)
        assert '"whole_loop"' in succeeded(comfy.run(graph.nodes)).text(report[0])
    assert comfy.log.read_text(errors="replace").count(words) == 1


def latent_of(graph: Graph, model: Link, seed: int) -> Link:
    latent = sampled(graph, model, *FLUX.texts(graph), FLUX.latent(graph), seed=seed, steps=2)
    saved(graph, latent, "decides")
    return latent


def test_two_gpus_of_comfyuis_change_nothing(comfy: ComfyServer, tmp_path: Path) -> None:
    if "SelectModelDevice" not in comfy.get("/object_info"):
        pytest.skip("this ComfyUI uses one GPU")
    file = tmp_path / "flux1-dev.safetensors"
    files.sparse(file, shapes.flux(3072, 19, 38, 4096, 768))
    (found,) = probe(tmp_path, file, script=PROBE)
    assert found["classes"] == ["OutboardPatcher"] * 3
    assert found["extra"] == [0, 0, 0]
    assert found["same"] == [True] * 3
    assert found["patched"] == []
    for words in ("MultiGPU_WorkUnits has no effect", "chosen by SelectModelDevice has no effect"):
        assert len([line for line in found["log"] if words in line]) == 1
