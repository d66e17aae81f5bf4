"""Z-Image's translation of a request; the numbers themselves are compared in tests/golden."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from models.files import describe, file_shapes, random_tensors, save, write
from models.tiny import CONFIGS, differ, make, noise
from outboard.engine.models.header import read_header
from outboard.engine.models.loader import load
from outboard.engine.models.model import Model
from outboard.engine.models.registry import detect
from outboard.engine.models.z_image import ZImage
from outboard.protocol.errors import InvalidRequestError, UnsupportedModelError, UnsupportedRequestError

TINY = CONFIGS["z_image"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return make(ZImage(), TINY, tmp_path_factory.mktemp("z"))


def predict(model: Model, x: torch.Tensor | None = None, **changes: Any) -> torch.Tensor:
    x = noise(1, 4, 6, 8) if x is None else x
    given = {"context": noise(x.shape[0], 5, 24), "num_tokens": 5} | changes
    return model.predict(x, torch.full((x.shape[0],), 0.7), given)


@pytest.mark.parametrize("size", [(6, 8), (5, 7), (1, 1)])
def test_any_size_comes_back_as_it_went(model: Model, size: tuple[int, int]) -> None:
    assert predict(model, noise(2, 4, *size)).shape == (2, 4, *size)


def test_each_row_of_a_batch_is_its_own(model: Model) -> None:
    x, context = noise(2, 4, 6, 8), noise(2, 5, 24)
    assert differ(predict(model, x, context=context)[1:], predict(model, x[1:], context=context[1:])) < 1e-5


def test_a_prompt_and_an_image_may_be_longer_than_any_table(model: Model) -> None:
    assert predict(model, noise(1, 4, 2, 1100), context=noise(1, 1600, 24)).isfinite().all()


def test_rope_options_move_the_image_for_one_call(model: Model) -> None:
    before = predict(model)
    assert differ(predict(model, rope_options={"shift_x": 3.0}), before) > 1e-6
    assert differ(predict(model, rope_options={"scale_y": 2.0}), before) > 1e-6
    assert torch.equal(predict(model), before)


def test_the_norms_of_queries_and_keys_have_the_smallest_eps(model: Model) -> None:
    blocks: Any = model.module
    for block in (*blocks.noise_refiner, *blocks.context_refiner, *blocks.layers):
        assert block.attention.norm_q.eps == block.attention.norm_k.eps == torch.finfo(torch.float32).eps


def test_a_norm_that_published_files_carry_for_nothing_is_passed_over(tmp_path: Path) -> None:
    weights = random_tensors(file_shapes(ZImage(), TINY)) | {"norm_final.weight": torch.ones(128)}
    path = save(tmp_path / "m.safetensors", weights)
    assert load(path, dtype=torch.bfloat16, device=torch.device("cpu")).family == "z_image"


@pytest.mark.parametrize("key", ["siglip_embedder.0.weight", "dec_net.cond_embed.weight"])
def test_variants_are_refused_by_name(key: str, tmp_path: Path) -> None:
    shapes = file_shapes(ZImage(), TINY) | {key: (4, 4)}
    with pytest.raises(UnsupportedModelError, match="looks like Z-Image"):
        detect(read_header(write(tmp_path / "m.safetensors", describe(shapes))))


@pytest.mark.parametrize("key", ["ref_latents", "attention_mask", "control", "siglip_feats"])
def test_what_this_family_cannot_use_is_refused(model: Model, key: str) -> None:
    foreign: dict[str, Any] = {key: [torch.ones(1)]}
    with pytest.raises(UnsupportedRequestError, match=f"Z-Image.*{key}"):
        predict(model, **foreign)


@pytest.mark.parametrize("change", [{"x": noise(1, 16, 4, 4)}, {"context": noise(1, 4, 25)}])
def test_an_impossible_request_is_refused(model: Model, change: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequestError):
        predict(model, **change)
