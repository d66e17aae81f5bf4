"""Qwen-Image's translation of a request; the numbers themselves are compared in tests/golden."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from models.files import file_shapes, random_tensors, save
from models.tiny import CONFIGS, differ, make, noise
from outboard.engine.models.loader import load
from outboard.engine.models.model import Model
from outboard.engine.models.positions import Place
from outboard.engine.models.qwen_image import Grids, QwenImage, Rotary
from outboard.protocol.errors import InvalidRequestError, UnsupportedRequestError

TINY = CONFIGS["qwen_image"]
REFERENCES = [noise(1, 4, 1, 4, 6), noise(1, 4, 1, 9, 3)]
METHODS = ("index", "index_timestep_zero", "negative_index", "offset")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return make(QwenImage(), TINY, tmp_path_factory.mktemp("qwen"))


def predict(
    model: Model, x: torch.Tensor | None = None, timestep: float = 0.7, **changes: Any
) -> torch.Tensor:
    x = noise(1, 4, 1, 6, 8) if x is None else x
    given = {"context": noise(x.shape[0], 5, 24)} | changes
    return model.predict(x, torch.full((x.shape[0],), timestep), given)


@pytest.mark.parametrize("size", [(1, 6, 8), (1, 5, 7), (3, 5, 2)])
def test_any_size_and_number_of_frames_comes_back_as_it_went(model: Model, size: tuple[int, ...]) -> None:
    assert predict(model, noise(2, 4, *size)).shape == (2, 4, *size)


def test_images_are_centred_and_the_text_begins_behind_the_target_alone() -> None:
    rotary = Rotary((2, 2, 2))
    target, reference = torch.zeros(1, 4, 1, 6, 4), torch.zeros(1, 4, 1, 20, 20)
    grids = Grids([target, reference], [Place(), Place(index=1.0)])
    assert grids.ids[:6].tolist() == [[0, row, column] for row in (-1, 0, 1) for column in (-1, 0)]
    assert grids.ids[6].tolist() == [1, -5, -5]
    _, words = rotary([grids], 2, target.device)
    assert words.angle().flatten().tolist() == pytest.approx([1.0] * 3 + [2.0] * 3)


def test_every_method_of_placing_references_is_its_own(model: Model) -> None:
    answers = [predict(model, ref_latents=REFERENCES, ref_latents_method=method) for method in METHODS]
    for number, answer in enumerate(answers):
        assert answer.shape == (1, 4, 1, 6, 8)
        assert all(differ(answer, other) > 1e-6 for other in [*answers[:number], predict(model)])


def test_uxo_is_what_comfyui_makes_of_it_offset(model: Model) -> None:
    stacked = predict(model, ref_latents=REFERENCES, ref_latents_method="offset")
    assert torch.equal(predict(model, ref_latents=REFERENCES, ref_latents_method="uxo"), stacked)


def test_the_marker_of_2511_changes_the_method_when_none_is_named(model: Model, tmp_path: Path) -> None:
    marked = make(QwenImage(), TINY, tmp_path)
    assert torch.equal(predict(marked, ref_latents=REFERENCES), predict(model, ref_latents=REFERENCES))
    still = predict(model, ref_latents=REFERENCES, ref_latents_method="index_timestep_zero")
    newer = make_2511(tmp_path)
    assert torch.equal(predict(newer, ref_latents=REFERENCES), still)
    assert torch.equal(predict(newer), predict(model))


def make_2511(folder: Path) -> Model:
    weights = random_tensors(file_shapes(QwenImage(), TINY), torch.float32, 0.1)
    path = save(folder / "2511.safetensors", weights | {"__index_timestep_zero__": torch.empty(0)})
    return load(path, dtype=torch.float32, device=torch.device("cpu"))


def test_one_call_leaves_no_trace_in_the_next(model: Model) -> None:
    before = predict(model, ref_latents=REFERENCES)
    predict(model, ref_latents=REFERENCES, ref_latents_method="index_timestep_zero")
    assert torch.equal(predict(model, ref_latents=REFERENCES), before)


def test_the_timestep_is_not_rounded_to_the_models_dtype(tmp_path: Path) -> None:
    model = make(QwenImage(), TINY, tmp_path, torch.bfloat16)
    assert torch.tensor(0.7).bfloat16() == torch.tensor(0.7009).bfloat16()
    assert not torch.equal(predict(model, timestep=0.7), predict(model, timestep=0.7009))


def test_masked_words_do_not_count(model: Model) -> None:
    context, mask = noise(1, 5, 24), torch.tensor([[1, 0, 1, 1, 0]])
    other = context.clone()
    other[:, [1, 4]] = 3.0
    masked = predict(model, context=context, attention_mask=mask)
    assert differ(masked, predict(model, context=context)) > 1e-6
    assert differ(predict(model, context=other, attention_mask=mask), masked) < 1e-6


def test_control_residuals_reach_the_block_they_name(model: Model) -> None:
    assert torch.equal(predict(model, control={"input": [None]}), predict(model))
    first = predict(model, control={"input": [noise(1, 12, 128)]})
    second = predict(model, control={"input": [None, noise(1, 12, 128)]})
    assert differ(first, second) > 1e-6


@pytest.mark.parametrize(
    "change",
    [
        {"ref_latents": REFERENCES, "ref_latents_method": "surprise"},
        {"attention_mask": torch.ones(1, 5)},
        {"rope_options": {"scale_x": 2.0}},
        {"guidance": torch.ones(1)},
    ],
)
def test_what_this_family_cannot_use_is_refused(model: Model, change: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedRequestError, match="Qwen-Image"):
        predict(model, **change)


@pytest.mark.parametrize(
    "change",
    [
        {"x": noise(1, 4, 6, 8)},
        {"x": noise(1, 16, 1, 6, 8)},
        {"ref_latents": [noise(1, 4, 6, 8)]},
        {"attention_mask": torch.ones(1, 6, dtype=torch.int64)},
    ],
)
def test_an_impossible_request_is_refused(model: Model, change: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequestError):
        predict(model, **change)
