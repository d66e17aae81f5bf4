"""FLUX.2's translation of a request; the numbers themselves are compared in tests/golden."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from models.tiny import CONFIGS, differ, make, noise
from outboard.engine.models.flux2 import Flux2
from outboard.engine.models.model import Model
from outboard.protocol.errors import InvalidRequestError, UnsupportedRequestError

KLEIN = CONFIGS["flux2"]
DEV = KLEIN | {"guidance_embeds": True}
REFERENCES = [noise(1, 8, 2, 3), noise(1, 8, 3, 1)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return make(Flux2(), DEV, tmp_path_factory.mktemp("flux2"))


def predict(
    model: Model, x: torch.Tensor | None = None, timestep: float = 0.7, **changes: Any
) -> torch.Tensor:
    x = noise(1, 8, 3, 5) if x is None else x
    rows = x.shape[0]
    given = {"context": noise(rows, 5, 24), "guidance": torch.full((rows,), 3.5)} | changes
    return model.predict(x, torch.full((rows,), timestep), given)


def test_any_size_comes_back_as_it_went(model: Model) -> None:
    assert predict(model, noise(2, 8, 7, 1)).shape == (2, 8, 7, 1)


def test_guidance_matters_to_dev_and_not_to_klein(model: Model, tmp_path: Path) -> None:
    other = torch.tensor([1.0])
    assert differ(predict(model, guidance=other), predict(model)) > 1e-4
    klein = make(Flux2(), KLEIN, tmp_path)
    assert torch.equal(predict(klein, guidance=other), predict(klein, guidance=None))


def test_the_timestep_is_not_rounded_to_the_models_dtype(tmp_path: Path) -> None:
    model = make(Flux2(), DEV, tmp_path, torch.bfloat16)
    assert torch.tensor(0.7).bfloat16() == torch.tensor(0.7009).bfloat16()
    assert not torch.equal(predict(model, timestep=0.7), predict(model, timestep=0.7009))


def test_references_stand_ten_frames_apart_unless_told_otherwise(model: Model) -> None:
    by_default = predict(model, ref_latents=REFERENCES)
    assert by_default.shape == (1, 8, 3, 5)
    assert torch.equal(predict(model, ref_latents=REFERENCES, ref_latents_method="index"), by_default)
    assert differ(predict(model, ref_latents=REFERENCES, ref_latents_method="offset"), by_default) > 1e-6


def test_words_are_told_apart_by_their_place(model: Model) -> None:
    context = noise(1, 5, 24)
    assert differ(predict(model, context=context.flip(1)), predict(model, context=context)) > 1e-6


def test_a_pooled_prompt_is_none_of_its_inputs(model: Model) -> None:
    assert torch.equal(predict(model, y=noise(1, 12)), predict(model))


@pytest.mark.parametrize("change", [{"control": {"input": [noise(1, 15, 128)]}}, {"clip_fea": noise(1, 2)}])
def test_what_this_family_cannot_use_is_refused(model: Model, change: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedRequestError, match=r"FLUX\.2"):
        predict(model, **change)


@pytest.mark.parametrize("change", [{"x": noise(1, 16, 4, 4)}, {"context": noise(1, 4, 25)}])
def test_an_impossible_request_is_refused(model: Model, change: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequestError):
        predict(model, **change)
