"""LTX-Video's translation of a request; the numbers themselves are compared in tests/golden."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from models.files import describe, file_shapes, random_tensors, write
from models.tiny import CONFIGS, differ, make, noise
from outboard.engine.models.header import read_header
from outboard.engine.models.loader import load
from outboard.engine.models.ltx_video import LtxVideo
from outboard.engine.models.model import Model
from outboard.engine.models.registry import detect
from outboard.protocol.errors import (
    CheckpointError,
    InvalidRequestError,
    UnsupportedModelError,
    UnsupportedRequestError,
)

TINY = CONFIGS["ltx_video"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return make(LtxVideo(), TINY, tmp_path_factory.mktemp("ltx"))


def predict(
    model: Model, x: torch.Tensor | None = None, timestep: torch.Tensor | None = None, **changes: Any
) -> torch.Tensor:
    x = noise(1, 4, 2, 3, 5) if x is None else x
    given = {"context": noise(x.shape[0], 5, 24), "frame_rate": 25} | changes
    return model.predict(x, torch.full((x.shape[0],), 0.7) if timestep is None else timestep, given)


def stated(folder: Path, **transformer: Any) -> Path:
    metadata = {"config": json.dumps({"transformer": transformer, "vae": {}})}
    return write(folder / "m.safetensors", describe(file_shapes(LtxVideo(), TINY)), metadata)


def test_any_size_comes_back_as_it_went(model: Model) -> None:
    assert predict(model, noise(2, 4, 1, 7, 2)).shape == (2, 4, 1, 7, 2)


def test_the_frame_rate_stretches_time(model: Model) -> None:
    assert differ(predict(model, frame_rate=50.0), predict(model)) > 1e-6


def test_tokens_may_have_a_timestep_each(model: Model) -> None:
    same = predict(model, timestep=torch.full((1, 30, 1), 0.7))
    assert differ(same, predict(model)) < 1e-6
    kept = torch.full((1, 30, 1), 0.7)
    kept[:, :15] = 0.0
    assert differ(predict(model, timestep=kept), same) > 1e-6
    with pytest.raises(InvalidRequestError, match="31 timesteps"):
        predict(model, timestep=torch.full((1, 31, 1), 0.7))


def test_masked_words_do_not_count(model: Model) -> None:
    context, mask = noise(1, 5, 24), torch.tensor([[1, 1, 0, 1, 0]])
    other = context.clone()
    other[:, [2, 4]] = 3.0
    masked = predict(model, context=context, attention_mask=mask)
    assert differ(masked, predict(model, context=context)) > 1e-6
    assert differ(predict(model, context=other, attention_mask=mask), masked) < 1e-6


def test_what_the_metadata_say_is_believed(model: Model, tmp_path: Path) -> None:
    weights = random_tensors(file_shapes(LtxVideo(), TINY), torch.float32, 0.1)
    metadata = {"config": json.dumps({"transformer": {"causal_temporal_positioning": True}})}
    save_file(weights, tmp_path / "causal.safetensors", metadata)
    causal = load(tmp_path / "causal.safetensors", dtype=torch.float32, device=torch.device("cpu"))
    assert differ(predict(causal), predict(model)) > 1e-6
    assert detect(read_header(stated(tmp_path, num_attention_heads=16))).config["attention_head_dim"] == 12


def test_metadata_of_a_network_unlike_ours_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModelError, match="use_middle_indices_grid is True"):
        detect(read_header(stated(tmp_path, use_middle_indices_grid=True)))


def test_metadata_that_are_no_json_are_refused(tmp_path: Path) -> None:
    entries = describe(file_shapes(LtxVideo(), TINY))
    with pytest.raises(CheckpointError, match="no JSON"):
        detect(read_header(write(tmp_path / "m.safetensors", entries, {"config": "{"})))


@pytest.mark.parametrize("key", ["control", "keyframe_idxs", "guide_attention_entries"])
def test_what_this_family_cannot_use_is_refused(model: Model, key: str) -> None:
    foreign: dict[str, Any] = {key: [torch.ones(1)]}
    with pytest.raises(UnsupportedRequestError, match=f"LTX-Video.*{key}"):
        predict(model, **foreign)
