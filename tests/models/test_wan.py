"""Wan's translation of a request; the numbers themselves are compared in tests/golden."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from models.tiny import CONFIGS, differ, make, noise
from outboard.engine.models.model import Model
from outboard.engine.models.wan import Wan
from outboard.protocol.errors import InvalidRequestError, UnsupportedRequestError

TEXT = CONFIGS["wan"]
IMAGE = TEXT | {"in_channels": 9, "image_dim": 16, "added_kv_proj_dim": 128}
FRAMES = IMAGE | {"pos_embed_seq_len": 6}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return make(Wan(), TEXT, tmp_path_factory.mktemp("wan"))


@pytest.fixture(scope="module")
def image_model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return make(Wan(), IMAGE, tmp_path_factory.mktemp("wan"))


def predict(
    model: Model, x: torch.Tensor | None = None, timestep: torch.Tensor | None = None, **changes: Any
) -> torch.Tensor:
    x = noise(1, 4, 2, 6, 8) if x is None else x
    given = {"context": noise(x.shape[0], 5, 24)} | changes
    return model.predict(x, torch.full((x.shape[0],), 700.0) if timestep is None else timestep, given)


def from_image(model: Model, **changes: Any) -> torch.Tensor:
    return predict(model, noise(1, 9, 2, 6, 8), **({"context": noise(1, 512, 24)} | changes))


@pytest.mark.parametrize("size", [(1, 6, 8), (2, 5, 7)])
def test_any_size_and_number_of_frames_comes_back_as_it_went(model: Model, size: tuple[int, ...]) -> None:
    assert predict(model, noise(2, 4, *size)).shape == (2, 4, *size)


def test_a_video_may_be_wider_than_any_table(model: Model) -> None:
    assert predict(model, noise(1, 4, 1, 2, 2100)).isfinite().all()


def test_frames_may_have_a_timestep_each(model: Model) -> None:
    same = predict(model, timestep=torch.tensor([[700.0, 700.0]]))
    assert differ(same, predict(model)) < 1e-6
    assert differ(predict(model, timestep=torch.tensor([[0.0, 700.0]])), same) > 1e-6
    with pytest.raises(InvalidRequestError, match="3 timesteps"):
        predict(model, timestep=torch.full((1, 3), 700.0))


@pytest.mark.parametrize("option", ["scale_x", "scale_y", "scale_t", "shift_x", "shift_y"])
def test_rope_options_move_the_video_for_one_call(model: Model, option: str) -> None:
    before = predict(model)
    assert torch.equal(predict(model, rope_options={option: float(option.startswith("scale"))}), before)
    moved = predict(model, rope_options={option: 2.0})
    # Attention sees distances: a shift of everything is no change, but for rounding.
    assert (differ(moved, before) > 1e-6) is option.startswith("scale")


def test_an_image_model_gives_the_latents_own_channels(image_model: Model) -> None:
    assert from_image(image_model, clip_fea=noise(1, 3, 16)).shape == (1, 4, 2, 6, 8)


def test_an_image_model_works_without_its_picture(image_model: Model) -> None:
    without = from_image(image_model)
    assert without.isfinite().all()
    assert differ(from_image(image_model, clip_fea=noise(1, 3, 16)), without) > 1e-6


def test_a_text_model_passes_over_a_picture(model: Model) -> None:
    assert torch.equal(predict(model, clip_fea=noise(1, 3, 16)), predict(model))


def test_an_image_model_reads_prompts_of_one_length_only(image_model: Model) -> None:
    with pytest.raises(UnsupportedRequestError, match="reads 512 words"):
        from_image(image_model, context=noise(1, 513, 24))


def test_a_picture_seen_by_another_clip_is_refused(image_model: Model) -> None:
    with pytest.raises(InvalidRequestError, match="width 16"):
        from_image(image_model, clip_fea=noise(1, 3, 17))


@pytest.mark.parametrize("tokens", [3, 6])
def test_a_model_of_two_frames_takes_one_too(tmp_path: Path, tokens: int) -> None:
    model = make(Wan(), FRAMES, tmp_path)
    assert from_image(model, clip_fea=noise(1, tokens, 16)).isfinite().all()


@pytest.mark.parametrize("key", ["control", "time_dim_concat", "reference_latent", "context_latents"])
def test_what_this_family_cannot_use_is_refused(model: Model, key: str) -> None:
    foreign: dict[str, Any] = {key: [torch.ones(1)]}
    with pytest.raises(UnsupportedRequestError, match=f"Wan.*{key}"):
        predict(model, **foreign)


@pytest.mark.parametrize("change", [{"x": noise(1, 4, 6, 8)}, {"x": noise(1, 9, 2, 6, 8)}])
def test_an_impossible_request_is_refused(model: Model, change: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequestError):
        predict(model, **change)
