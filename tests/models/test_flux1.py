"""FLUX.1's translation of a request; the numbers themselves are compared in tests/golden."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from models.files import TINY, flux1_shapes, random_tensors, save
from outboard.engine.models.loader import load
from outboard.engine.models.model import Model
from outboard.protocol.errors import InvalidRequestError, UnsupportedRequestError

CPU = torch.device("cpu")


def build(folder: Path, dtype: torch.dtype, config: dict[str, Any] = TINY) -> Model:
    path = save(folder / "flux.safetensors", random_tensors(flux1_shapes(config), torch.float32))
    return load(path, dtype=dtype, device=CPU)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return build(tmp_path_factory.mktemp("flux1"), torch.float32)


def noise(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def request(batch: int = 1, **changes: Any) -> dict[str, Any]:
    given = {"context": noise(batch, 5, 24), "y": noise(batch, 12), "guidance": torch.full((batch,), 3.5)}
    return given | changes


def predict(
    model: Model, x: torch.Tensor | None = None, timestep: float = 0.7, **changes: Any
) -> torch.Tensor:
    x = noise(1, 16, 6, 8) if x is None else x
    return model.predict(x, torch.full((x.shape[0],), timestep), request(x.shape[0], **changes))


def differ(one: torch.Tensor, two: torch.Tensor) -> float:
    return float((one.double() - two.double()).norm() / two.double().norm())


@pytest.mark.parametrize("size", [(6, 8), (5, 7), (1, 1), (3, 8)])
def test_output_has_the_latents_own_size(model: Model, size: tuple[int, int]) -> None:
    assert predict(model, noise(2, 16, *size)).shape == (2, 16, *size)


def test_an_odd_latent_is_completed_by_wrapping_around(model: Model) -> None:
    x = noise(1, 16, 5, 7)
    wrapped = torch.cat([x, x[:, :, :1]], dim=2)
    wrapped = torch.cat([wrapped, wrapped[:, :, :, :1]], dim=3)
    assert differ(predict(model, x), predict(model, wrapped)[:, :, :5, :7]) < 1e-6


def test_each_row_of_a_batch_is_its_own(model: Model) -> None:
    x = noise(2, 16, 6, 8)
    given = request(2)
    both = model.predict(x, torch.tensor([0.9, 0.2]), given)
    second = model.predict(x[1:], torch.tensor([0.2]), {key: value[1:] for key, value in given.items()})
    assert differ(both[1:], second) < 1e-5


def test_a_missing_pooled_prompt_counts_as_zeros(model: Model) -> None:
    assert torch.equal(predict(model, y=None), predict(model, y=torch.zeros(1, 12)))
    assert differ(predict(model, y=None), predict(model)) > 1e-3


def test_a_wider_pooled_prompt_is_cut(model: Model) -> None:
    assert torch.equal(predict(model, y=torch.cat([noise(1, 12), noise(1, 9)], 1)), predict(model))


def test_guidance_matters_only_to_a_distilled_model(model: Model, tmp_path: Path) -> None:
    assert differ(predict(model, guidance=torch.tensor([1.0])), predict(model)) > 1e-3
    schnell = build(tmp_path, torch.float32, TINY | {"guidance_embeds": False})
    assert torch.equal(predict(schnell, guidance=torch.tensor([1.0])), predict(schnell, guidance=None))


def test_the_timestep_is_not_rounded_to_the_models_dtype(tmp_path: Path) -> None:
    model = build(tmp_path, torch.bfloat16)
    near, same = 0.7, 0.7009
    assert torch.tensor(near).bfloat16() == torch.tensor(same).bfloat16()
    assert not torch.equal(predict(model, timestep=near), predict(model, timestep=same))


def test_the_answer_is_in_the_models_dtype(tmp_path: Path) -> None:
    assert predict(build(tmp_path, torch.bfloat16)).dtype == torch.bfloat16


REFERENCES = [noise(1, 16, 4, 6), noise(1, 16, 5, 3)]


def test_reference_latents_change_the_answer_and_not_its_size(model: Model) -> None:
    answers = [
        predict(model, ref_latents=REFERENCES, ref_latents_method=way) for way in ("offset", "index", "uxo")
    ]
    assert all(answer.shape == (1, 16, 6, 8) for answer in answers)
    assert all(differ(answer, predict(model)) > 1e-4 for answer in answers)
    assert all(differ(answers[one], answers[two]) > 1e-4 for one, two in ((0, 1), (1, 2), (0, 2)))


def test_offset_is_the_method_when_none_is_named(model: Model) -> None:
    named = predict(model, ref_latents=REFERENCES, ref_latents_method="offset")
    assert torch.equal(predict(model, ref_latents=REFERENCES), named)


def test_one_reference_serves_a_whole_batch(model: Model) -> None:
    assert predict(model, noise(2, 16, 6, 8), ref_latents=REFERENCES[:1]).shape == (2, 16, 6, 8)


@pytest.mark.parametrize("method", ["index_timestep_zero", "negative_index", "surprise"])
def test_other_reference_methods_are_refused(model: Model, method: str) -> None:
    with pytest.raises(UnsupportedRequestError, match=method):
        predict(model, ref_latents=REFERENCES, ref_latents_method=method)


def test_control_residuals_touch_only_the_blocks_and_tokens_they_name(model: Model) -> None:
    nothing = {"input": [None], "output": [], "middle": []}
    assert torch.equal(predict(model, control=nothing), predict(model))
    zeros = {"input": [torch.zeros(1, 12, 128)], "output": [None, torch.zeros(1, 3, 128)]}
    assert torch.equal(predict(model, control=zeros), predict(model))
    last = {"output": [None, noise(1, 3, 128)]}  # the last block's first three tokens: no attention follows
    changed = (predict(model, control=last) - predict(model)).abs().amax((0, 1))
    tokens = changed.reshape(3, 2, 4, 2).amax((1, 3)).flatten()
    assert (tokens[:3] > 0).all()
    assert (tokens[3:] == 0).all()


def test_a_control_residual_larger_than_the_image_is_refused(model: Model) -> None:
    with pytest.raises(InvalidRequestError, match="12 image tokens"):
        predict(model, control={"input": [torch.zeros(1, 13, 128)]})


def test_an_unknown_control_list_is_refused(model: Model) -> None:
    with pytest.raises(UnsupportedRequestError, match="sideways"):
        predict(model, control={"sideways": [torch.zeros(1, 12, 128)]})


def test_rope_options_move_the_image(model: Model) -> None:
    assert torch.equal(predict(model, rope_options={"scale_x": 1.0, "shift_y": 0.0}), predict(model))
    assert differ(predict(model, rope_options={"scale_x": 0.5}), predict(model)) > 1e-4
    with pytest.raises(UnsupportedRequestError, match="scale_q"):
        predict(model, rope_options={"scale_q": 1.0})


def test_an_attention_mask_is_honoured(model: Model) -> None:
    tokens = 5 + 12
    allowed = torch.ones(tokens, tokens, dtype=torch.bool)
    assert differ(predict(model, attention_mask=allowed), predict(model)) < 1e-6
    allowed[5:, :5] = False
    masked = predict(model, attention_mask=allowed)
    assert differ(masked, predict(model)) > 1e-4
    additive = torch.zeros(1, tokens, tokens).masked_fill(~allowed, float("-inf"))
    assert differ(predict(model, attention_mask=additive), masked) < 1e-6


BAD: dict[str, dict[str, Any]] = {
    "fill's channels": {"x": noise(1, 96, 6, 8)},
    "no text": {"context": None},
    "text of another width": {"context": noise(1, 5, 25)},
    "pooled too narrow": {"y": noise(1, 11)},
    "mask of another size": {"attention_mask": torch.ones(4, 4, dtype=torch.bool)},
    "reference with other channels": {"ref_latents": [noise(1, 4, 6, 8)]},
    "rope option that is text": {"rope_options": {"scale_x": "2"}},
}


@pytest.mark.parametrize("case", BAD)
def test_an_impossible_request_is_refused_before_computing(model: Model, case: str) -> None:
    with pytest.raises(InvalidRequestError):
        predict(model, **BAD[case])
