"""The same graph twice in one server, once with the stock loader and once with ours."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from safetensors.torch import load_file

from comfyui.graphs import Graph, Link, saved
from comfyui.server import ComfyServer, Outcome

#: Builds a graph on a loader's output and returns the latent to compare.
Build = Callable[[Graph, Link], Link]
DEFAULT = "default"


@dataclass(frozen=True)
class Pair:
    """Both latents, and the report of our run."""

    stock: torch.Tensor
    ours: torch.Tensor
    report: dict[str, Any]

    @property
    def difference(self) -> float:
        """The largest difference, as a share of the largest value."""
        return float((self.stock - self.ours).abs().max() / self.stock.abs().max())


def run_pair(server: ComfyServer, file: str, build: Build, weight_dtype: str = DEFAULT) -> Pair:
    """Both runs; an error in either fails the test with its message."""
    stock, _ = run_one(server, "UNETLoader", file, build, weight_dtype)
    ours, report = run_one(server, "OutboardUNETLoader", file, build, weight_dtype)
    return Pair(stock, ours, json.loads(report))


def run_one(
    server: ComfyServer, loader: str, file: str, build: Build, weight_dtype: str = DEFAULT
) -> tuple[torch.Tensor, str]:
    graph = Graph()
    latent = build(graph, graph.add(loader, unet_name=file, weight_dtype=weight_dtype))
    save = saved(graph, latent, "pair")
    report = graph.add("OutboardReport", latent=latent) if loader.startswith("Outboard") else None
    done = succeeded(server.run(graph.nodes))
    tensor = load_file(server.latent_path(done, save[0]))["latent_tensor"]
    return tensor, done.text(report[0]) if report else ""


def between_paths(server: ComfyServer, file: str, build: Build) -> float:
    """The largest difference between a graph as a whole loop and step by step, by the same engine."""

    def stepping(graph: Graph, model: Link) -> Link:
        return build(graph, graph.add("OutboardTestPerStep", model=model))

    whole, report = run_one(server, "OutboardUNETLoader", file, build)
    steps, other = run_one(server, "OutboardUNETLoader", file, stepping)
    assert json.loads(report)["path"] == "whole_loop"
    assert json.loads(other)["reason"] == "as asked"
    return float((whole - steps).abs().max() / whole.abs().max())


def succeeded(done: Outcome) -> Outcome:
    """`done`, or a failed assertion with what the node said."""
    error = done.error
    assert error is None, f"{error['node_type']}: {error['exception_message']}" if error else ""
    return done
