"""Chroma's translation of a request; the numbers themselves are compared in tests/golden."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from models.files import describe, file_shapes, write
from models.tiny import CONFIGS, differ, make, noise
from outboard.engine.models.chroma import Chroma
from outboard.engine.models.header import read_header
from outboard.engine.models.model import Model
from outboard.engine.models.registry import detect
from outboard.protocol.errors import InvalidRequestError, UnsupportedModelError, UnsupportedRequestError

TINY = CONFIGS["chroma"]
PUBLISHED = TINY | {"num_layers": 19, "num_single_layers": 38}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return make(Chroma(), TINY, tmp_path_factory.mktemp("chroma"), told=True)


def predict(
    model: Model, x: torch.Tensor | None = None, timestep: float = 0.7, **changes: Any
) -> torch.Tensor:
    x = noise(1, 4, 6, 8) if x is None else x
    given = {"context": noise(x.shape[0], 5, 24), "guidance": torch.zeros(1)} | changes
    return model.predict(x, torch.full((x.shape[0],), timestep), given)


def test_the_published_depth_is_read_from_the_shapes_and_no_other(tmp_path: Path) -> None:
    published = read_header(write(tmp_path / "a.safetensors", describe(file_shapes(Chroma(), PUBLISHED))))
    assert dict(detect(published).config) == PUBLISHED
    other = read_header(write(tmp_path / "b.safetensors", describe(file_shapes(Chroma(), TINY))))
    with pytest.raises(UnsupportedModelError, match=r"\(1, 2\) blocks"):
        detect(other)


def test_resaved_norms_are_recognised(tmp_path: Path) -> None:
    shapes = file_shapes(Chroma(), PUBLISHED)
    resaved = {name.replace(".scale", ".weight"): shape for name, shape in shapes.items()}
    assert set(detect(read_header(write(tmp_path / "a.safetensors", describe(resaved)))).contents) == set(
        shapes
    )


@pytest.mark.parametrize("size", [(6, 8), (5, 7)])
def test_any_size_comes_back_as_it_went(model: Model, size: tuple[int, int]) -> None:
    assert predict(model, noise(2, 4, *size)).shape == (2, 4, *size)


def test_guidance_counts_as_zero_when_there_is_none(model: Model) -> None:
    assert torch.equal(predict(model, guidance=None), predict(model))
    assert differ(predict(model, guidance=torch.tensor([3.5])), predict(model)) > 1e-6


def test_the_timestep_is_not_rounded_to_the_models_dtype(tmp_path: Path) -> None:
    model = make(Chroma(), TINY, tmp_path, torch.bfloat16, told=True)
    assert torch.tensor(0.7).bfloat16() == torch.tensor(0.7009).bfloat16()
    assert not torch.equal(predict(model, timestep=0.7), predict(model, timestep=0.7009))


def test_control_residuals_reach_both_kinds_of_block(model: Model) -> None:
    assert torch.equal(predict(model, control={"input": [None], "output": []}), predict(model))
    first = predict(model, control={"input": [noise(1, 12, 128)]})
    second = predict(model, control={"output": [None, noise(1, 12, 128)]})
    assert differ(first, predict(model)) > 1e-6
    assert differ(second, predict(model)) > 1e-6


def test_a_pooled_prompt_is_none_of_its_inputs(model: Model) -> None:
    assert torch.equal(predict(model, y=noise(1, 12)), predict(model))


@pytest.mark.parametrize("key", ["ref_latents", "attention_mask", "rope_options"])
def test_what_this_family_cannot_use_is_refused(model: Model, key: str) -> None:
    foreign: dict[str, Any] = {key: [torch.ones(1)]}
    with pytest.raises(UnsupportedRequestError, match=f"Chroma.*{key}"):
        predict(model, **foreign)


def test_an_impossible_request_is_refused(model: Model) -> None:
    with pytest.raises(InvalidRequestError):
        predict(model, noise(1, 16, 4, 4))
