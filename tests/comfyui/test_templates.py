"""The official templates: the MODEL path of each runs in the engine, or is refused by the name of a node.

"Use Outboard for every diffusion model" is on, and each file is a small one of its family under its own name,
in the layout of fp8 that the name tells.
The latents must be those of the same graph with the setting off.
With OUTBOARD_WRITE_DOCS set, the table goes to docs/templates.md.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from comfyui import files, quantised, templates, versions
from comfyui.conftest import REPOSITORY
from comfyui.graphs import Graph, Subject
from comfyui.model_path import ModelPath
from comfyui.pairs import succeeded
from comfyui.server import ComfyServer, Outcome
from comfyui.table import TABLE, Row, Table
from comfyui.workflow import Node, flatten

pytestmark = [pytest.mark.comfyui, pytest.mark.timeout(300)]

SETTING = "/settings/Outboard.UseForAll"
#: On max|ours - stock| / max|stock| over a whole latent, in fp32.
TOLERANCE = 1e-5
PAGE = REPOSITORY / "docs" / "templates.md"
#: Nodes that reach into the model, and how the refusal names them.
REFUSED = {
    "FluxKVCache": "set by FluxKVCache",
    "QwenImageDiffsynthControlnet": "set by a ControlNet model patch (QwenImageDiffsynthControlnet",
}


@pytest.fixture(scope="module")
def table(request: pytest.FixtureRequest) -> Iterator[Table]:
    table = request.config.stash.setdefault(TABLE, Table())
    yield table
    if os.environ.get("OUTBOARD_WRITE_DOCS"):
        PAGE.write_text(table.page(), encoding="utf-8")


@pytest.fixture(scope="module")
def info(comfy: ComfyServer) -> Iterator[Mapping[str, Any]]:
    """What the server's nodes take, with the setting on."""
    comfy.post(SETTING, True)
    yield comfy.get("/object_info")
    comfy.post(SETTING, False)


@pytest.mark.parametrize("name", templates.TEMPLATES)
def test_a_template_runs_or_is_refused_by_name(
    comfy: ComfyServer, info: Mapping[str, Any], table: Table, name: str
) -> None:
    workflow = read(comfy, name)
    if workflow is None:
        table.add(name, Row("absent", "not among the templates of this ComfyUI"))
        return
    nodes = flatten(workflow)
    provide(comfy.base / "models", nodes, info)
    row = run(comfy, nodes, info)
    table.add(name, row)
    assert row.difference <= TOLERANCE


def read(comfy: ComfyServer, name: str) -> dict[str, Any] | None:
    try:
        workflow: dict[str, Any] = comfy.get(f"/templates/{name}.json")
    except RuntimeError as error:
        if " 404 " in str(error):
            return None
        raise
    return workflow


def run(comfy: ComfyServer, nodes: Mapping[str, Node], info: Mapping[str, Any]) -> Row:
    """Run the path; after a refusal, once more without the nodes it names, which must then succeed."""
    refused: list[str] = []
    while True:
        path = ModelPath(nodes, info, subject_of, tuple(refused))
        reports = path.build()
        if not reports:
            titles = {templates.foreign(file) for file in loaded(nodes, info)} - {""}
            return Row("foreign", ", ".join(sorted(titles)))
        done = comfy.run(path.graph.nodes)
        if done.error is not None:
            refused.append(culprit(done, nodes))
            continue
        note = "; ".join(dict.fromkeys(described(done, link[0]) for link in reports))
        left_out = path.dropped - set(refused)
        return Row("refused" if refused else "run", note, refused, left_out, apart(comfy, path.graph, done))


def apart(comfy: ComfyServer, graph: Graph, ours: Outcome) -> float:
    """The largest difference from the same graph with the setting off, as a share of the largest value."""
    comfy.post(SETTING, False)
    try:
        stock = succeeded(comfy.run(graph.nodes))
    finally:
        comfy.post(SETTING, True)
    found = 0.0
    for name in (name for name, node in graph.nodes.items() if node["class_type"] == "SaveLatent"):
        one, two = (load_file(comfy.latent_path(done, name))["latent_tensor"] for done in (ours, stock))
        found = max(found, float((one - two).abs().max() / two.abs().max()))
    return found


def culprit(done: Outcome, nodes: Mapping[str, Node]) -> str:
    """The node of the template that the refusal names."""
    assert done.error is not None
    message = done.error["exception_message"]
    assert "stock loader" in message, message
    found = [kind for kind, words in REFUSED.items() if words in message]
    assert found, message
    assert any(node.type == found[0] for node in nodes.values() if node.active)
    return found[0]


def described(done: Outcome, report: str) -> str:
    """The path of a run, and why: each sampler must have been the engine's."""
    text = done.text(report)
    if versions.first().old and not text.startswith("{"):
        return "left to the stock loader: quantised"
    assert text.startswith("{"), text
    facts = json.loads(text)
    return "whole loop" if facts["path"] == "whole_loop" else f"step by step ({facts['reason']})"


def subject_of(file: str) -> Subject | None:
    found = templates.stand_in(file)
    return found[0] if found else None


def loaded(nodes: Mapping[str, Node], info: Mapping[str, Any]) -> set[str]:
    """The files of the active loaders."""
    path = ModelPath(nodes, info, subject_of)
    return {file for node in nodes.values() if node.active for file in path.files(node)}


def provide(models: Path, nodes: Mapping[str, Node], info: Mapping[str, Any]) -> None:
    """Small files under the names of those that the template loads, and LoRAs that fit them."""
    path = ModelPath(nodes, info, subject_of)
    unets, loras = models / "diffusion_models", models / "loras"
    for node in nodes.values():
        for file in path.files(node):
            found = templates.stand_in(file)
            if found is not None and not (unets / file).exists():
                save_file(dict(quantised.named(file, load_file(unets / found[1]))), unets / file)
            if found is not None and node.type.startswith("LoraLoader"):
                lora = loras / path.widgets(node)["lora_name"]
                lora.parent.mkdir(parents=True, exist_ok=True)
                save_file(files.lora_for(unets / found[1]), lora)
