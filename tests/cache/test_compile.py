"""Blocks that are compiled first are computed by their graphs; what decides stays outside of those."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch._dynamo.utils import counters

from cache.networks import BLOCKS, blocks_of, differ, euler, network
from cache.test_isolation import DYNAMIC, STATIC, STEPS, around
from outboard.engine.cache.controller import install, remove
from outboard.engine.cache.settings import Settings
from outboard.engine.models.model import Model


class Graphs:
    """A backend that runs a graph as it is, and counts how many were made and how often one ran."""

    def __init__(self) -> None:
        self.made = 0
        self.ran = 0

    def __call__(self, graph: torch.fx.GraphModule, _: list[torch.Tensor]) -> Callable[..., Any]:
        self.made += 1

        def run(*inputs: Any) -> Any:
            self.ran += 1
            return graph.forward(*inputs)

        return run


@pytest.fixture(params=["wan", "qwen_image", "flux1"])
def model(request: pytest.FixtureRequest) -> Iterator[Model]:
    model = network(request.param)
    yield model
    remove(model)
    for block in blocks_of(model.module):
        vars(block).pop("forward", None)
    torch.compiler.reset()


@pytest.mark.parametrize("settings", [DYNAMIC, STATIC], ids=["dynamic", "static"])
def test_hits_make_no_graph_and_blocks_break_none(model: Model, settings: Settings) -> None:
    step_cache = install(model, settings)
    eager = euler(model, STEPS, around=around(step_cache, "eager"))
    assert min(eager.blocks) < BLOCKS
    remove(model)

    torch.compiler.reset()
    counters.clear()
    graphs = Graphs()
    for block in blocks_of(model.module):
        vars(block)["forward"] = torch.compile(block.forward, backend=graphs, fullgraph=True)
    euler(model, 1)
    first = graphs.made
    assert 0 < first <= BLOCKS
    graphs.ran = 0

    step_cache = install(model, settings)
    compiled = euler(model, STEPS, around=around(step_cache, "compiled"))
    assert graphs.made == first
    assert sum(counters["graph_break"].values()) == 0
    assert compiled.blocks == eager.blocks
    assert graphs.ran == sum(eager.blocks)
    assert differ(compiled.latent, eager.latent) < 1e-6
