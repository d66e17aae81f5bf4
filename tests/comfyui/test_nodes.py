"""The nodes as ComfyUI lists them, and the demo in a graph."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from comfyui.graphs import DIGITS, Graph, sampled
from comfyui.pairs import succeeded
from comfyui.server import ComfyServer
from outboard.engine.demo.judge import read_all

pytestmark = [pytest.mark.comfyui, pytest.mark.timeout(300)]

NODES = {
    "OutboardUNETLoader": "UNETLoader",
    "OutboardLoraLoader": "LoraLoaderModelOnly",
    "OutboardKSampler": "KSampler",
    "OutboardEngine": "",
    "OutboardSettings": "",
    "OutboardCacheSettings": "",
    "OutboardReport": "",
    "OutboardDigitPrompt": "",
    "OutboardDigitDecode": "",
}


def widgets(info: dict[str, Any]) -> dict[str, Any]:
    """The required inputs of a node: names in order, with their choices, GGUF files aside, or limits."""
    found = {}
    for name, (kind, *options) in info["input"]["required"].items():
        limits = options[0] if options else {}
        choices = kind if isinstance(kind, list) else limits.get("options")
        plain = kind if isinstance(kind, str) and kind != "COMBO" else "COMBO"
        found[name] = (
            plain,
            [choice for choice in choices or () if not str(choice).endswith(".gguf")],
            limits.get("default"),
            limits.get("max"),
        )
    return found


@pytest.mark.parametrize(("ours", "stock"), NODES.items())
def test_a_node_is_listed(comfy: ComfyServer, ours: str, stock: str) -> None:
    info = comfy.get(f"/object_info/{ours}")[ours]
    assert info["category"].startswith("outboard")
    if stock:
        assert widgets(info) == widgets(comfy.get(f"/object_info/{stock}")[stock])


def test_the_stock_loader_lists_the_digits(comfy: ComfyServer) -> None:
    info = comfy.get("/object_info/UNETLoader")["UNETLoader"]
    assert DIGITS.file in info["input"]["required"]["unet_name"][0]


@pytest.mark.parametrize("digit", [3, 7])
def test_a_graph_draws_the_digit_that_was_asked_for(comfy: ComfyServer, digit: int) -> None:
    graph = Graph()
    texts = DIGITS.text(graph, digit), graph.add("OutboardDigitPrompt", digit="empty")
    latent = sampled(
        graph, DIGITS.model(graph, ours=True), *texts, DIGITS.latent(graph, batch=4), steps=16, cfg=3.0
    )
    pictures = graph.add("OutboardDigitDecode", samples=latent)
    save = graph.add("SaveImage", images=pictures, filename_prefix="digit")
    done = succeeded(comfy.run(graph.nodes))
    drawn = torch.stack([picture(comfy.base / "output", place) for place in done.outputs[save[0]]["images"]])
    assert drawn.shape == (4, 32, 32)
    assert sum(reading.is_digit(digit) for reading in read_all(drawn)) >= 3


def picture(folder: Path, place: dict[str, str]) -> torch.Tensor:
    with Image.open(folder / place["subfolder"] / place["filename"]) as image:
        return torch.from_numpy(np.asarray(image.convert("L")).copy()).float() / 255
