"""Sharing out on one rank, and what is refused before any weight is touched."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from models.tiny import CONFIGS, make, noise
from outboard.engine.models.ernie_image import ErnieImage
from outboard.engine.models.model import Model
from outboard.engine.parallel.apply import check, parallelize, undo
from outboard.engine.parallel.families import PLANS
from outboard.engine.parallel.layout import Layout
from outboard.engine.parallel.mesh import Mesh, build_mesh
from outboard.engine.parallel.plans import attention_and_gated, attention_then_rest, halves
from outboard.protocol.errors import InvalidRequestError, UnsupportedRequestError


@pytest.fixture
def model(tmp_path: Path) -> Model:
    return make(ErnieImage(), CONFIGS["ernie_image"], tmp_path)


@pytest.fixture
def mesh(tmp_path: Path) -> Iterator[Mesh]:
    dist.init_process_group("gloo", init_method=(tmp_path / "meeting").as_uri(), rank=0, world_size=1)
    yield build_mesh(Layout(), "cpu")
    dist.destroy_process_group()


def ask(model: Model) -> torch.Tensor:
    return model.predict(noise(2, 128, 3, 5), torch.full((2,), 700.0), {"context": noise(2, 7, 24)})


def test_one_rank_gives_the_same_and_undoing_leaves_nothing(model: Model, mesh: Mesh) -> None:
    alone, adapter, attention = ask(model), model.adapter, model.attention
    parallelize(model, mesh, Layout())
    assert model.family == "ernie_image"
    assert torch.equal(ask(model), alone)
    with pytest.raises(InvalidRequestError, match="shared out already"):
        parallelize(model, mesh, Layout())
    undo(model)
    undo(model)
    assert (model.adapter, model.attention) == (adapter, attention)


def test_a_layout_that_is_not_the_meshs_is_refused(model: Model, mesh: Mesh) -> None:
    with pytest.raises(InvalidRequestError, match="ulysses 2 does not go with a mesh of one rank"):
        parallelize(model, mesh, Layout(ulysses=2))


def test_a_mesh_needs_as_many_ranks_as_there_are(mesh: Mesh) -> None:
    with pytest.raises(InvalidRequestError, match="= 2 does not go with 1 ranks"):
        build_mesh(Layout(cfg=2), "cpu")


def test_a_mesh_without_a_process_group_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="no process group"):
        build_mesh(Layout(), "cpu")


def test_heads_that_do_not_divide_are_refused_with_what_would_work(tmp_path: Path) -> None:
    config = CONFIGS["ernie_image"] | {
        "num_attention_heads": 30,
        "hidden_size": 120,
        "rope_axes_dim": (2, 2, 0),
    }
    model = make(ErnieImage(), config, tmp_path, told=True)
    with pytest.raises(UnsupportedRequestError, match="30 heads, which do not divide by tp 4") as caught:
        check(model.module, model.adapter.title, PLANS["ErnieImageTransformer2DModel"], Layout(cfg=2, tp=4))
    assert "tp 2, tp 3, tp 5, tp 6" in caught.value.hint
    assert "cfg 2 x ulysses 4" in caught.value.hint


def test_a_layer_that_is_not_plain_is_refused(model: Model) -> None:
    module: Any = model.module
    module.layers[0].mlp.up_proj = torch.nn.Bilinear(1, 1, 1)
    with pytest.raises(UnsupportedRequestError, match=r"layers\.0\.mlp\.up_proj' is a Bilinear"):
        check(model.module, model.adapter.title, PLANS["ErnieImageTransformer2DModel"], Layout(tp=1))


def test_fused_layers_tell_their_blocks() -> None:
    assert list(halves(torch.nn.Linear(4, 6))) == [3, 3]
    assert list(attention_and_gated(torch.nn.Linear(4, 3 * 4 + 2 * 12))) == [4, 4, 4, 12, 12]
    assert list(attention_then_rest(torch.nn.Linear(4 + 16, 4))) == [4, 16]
