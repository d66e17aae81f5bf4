"""ERNIE-Image's translation of a request; the numbers themselves are compared in tests/golden."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from models.files import ERNIE, random_tensors, save
from outboard.engine.models.loader import load
from outboard.engine.models.model import Model
from outboard.protocol.errors import InvalidRequestError, UnsupportedModelError, UnsupportedRequestError


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    path = save(tmp_path_factory.mktemp("ernie") / "m.safetensors", random_tensors(ERNIE, spread=0.2))
    return load(path, dtype=torch.float32, device=torch.device("cpu"))


def noise(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def predict(
    model: Model, x: torch.Tensor | None = None, timestep: float = 700.0, **changes: Any
) -> torch.Tensor:
    x = noise(1, 128, 3, 5) if x is None else x
    given = {"context": noise(x.shape[0], 4, 24)} | changes
    return model.predict(x, torch.full((x.shape[0],), timestep), given)


def differ(one: torch.Tensor, two: torch.Tensor) -> float:
    return float((one - two).norm() / two.norm())


def test_any_size_comes_back_as_it_went(model: Model) -> None:
    assert predict(model, noise(2, 128, 7, 3)).shape == (2, 128, 7, 3)


def test_rope_options_move_the_image_for_one_call(model: Model) -> None:
    before = predict(model)
    assert differ(predict(model, rope_options={"shift_x": 3.0}), before) > 1e-5
    assert differ(predict(model, rope_options={"scale_y": 2.0}), before) > 1e-5
    assert torch.equal(predict(model), before)


@pytest.mark.parametrize("key", ["control", "y", "guidance", "ref_latents", "attention_mask"])
def test_what_this_family_cannot_use_is_refused(model: Model, key: str) -> None:
    foreign: dict[str, Any] = {key: torch.ones(1)}
    with pytest.raises(UnsupportedRequestError, match=f"ERNIE-Image.*{key}"):
        predict(model, **foreign)


@pytest.mark.parametrize(
    "change", [{"x": noise(1, 16, 4, 4)}, {"context": noise(1, 4, 25)}, {"context": None}]
)
def test_an_impossible_request_is_refused(model: Model, change: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequestError):
        predict(model, **change)


def test_an_unknown_patch_size_is_refused(tmp_path: Path) -> None:
    shapes = ERNIE | {"x_embedder.proj.weight": (128, 128, 2, 2)}
    path = save(tmp_path / "m.safetensors", random_tensors(shapes))
    with pytest.raises(UnsupportedModelError, match="patches 2"):
        load(path, dtype=torch.float32, device=torch.device("cpu"))
