"""Stable Diffusion 3's translation of a request; the numbers themselves are compared in tests/golden."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from models.tiny import CONFIGS, differ, make, noise
from outboard.engine.models.model import Model
from outboard.engine.models.sd3 import Sd3
from outboard.protocol.errors import InvalidRequestError, UnsupportedRequestError

MEDIUM = CONFIGS["sd3"]
FIRST = MEDIUM | {"dual_attention_layers": [], "qk_norm": None}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return make(Sd3(), MEDIUM, tmp_path_factory.mktemp("sd3"))


def predict(model: Model, x: torch.Tensor | None = None, **changes: Any) -> torch.Tensor:
    x = noise(1, 4, 6, 8) if x is None else x
    given = {"context": noise(x.shape[0], 5, 24), "y": noise(x.shape[0], 12)} | changes
    return model.predict(x, torch.full((x.shape[0],), 700.0), given)


def test_the_first_version_has_neither_second_attention_nor_norms(tmp_path: Path) -> None:
    assert predict(make(Sd3(), FIRST, tmp_path)).isfinite().all()


@pytest.mark.parametrize("size", [(6, 8), (5, 7), (12, 12)])
def test_any_size_it_has_places_for_comes_back_as_it_went(model: Model, size: tuple[int, int]) -> None:
    assert predict(model, noise(2, 4, *size)).shape == (2, 4, *size)


def test_a_picture_larger_than_its_places_is_refused(model: Model) -> None:
    with pytest.raises(InvalidRequestError, match="12x12"):
        predict(model, noise(1, 4, 6, 13))


def test_the_pooled_prompt_counts(model: Model) -> None:
    assert differ(predict(model, y=None), predict(model)) > 1e-6


@pytest.mark.parametrize("key", ["control", "guidance", "ref_latents"])
def test_what_this_family_cannot_use_is_refused(model: Model, key: str) -> None:
    foreign: dict[str, Any] = {key: [torch.ones(1)]}
    with pytest.raises(UnsupportedRequestError, match=f"Stable Diffusion 3.*{key}"):
        predict(model, **foreign)
