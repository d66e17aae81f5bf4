"""What every loaded model does with a request, whatever its family."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from models.files import ERNIE, flux1_shapes, random_tensors, save
from outboard.engine.models.loader import load
from outboard.engine.models.model import Model
from outboard.protocol.errors import UnsupportedRequestError

CPU = torch.device("cpu")


@pytest.fixture(scope="module", params=["flux1", "ernie_image"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Model:
    shapes = flux1_shapes() if request.param == "flux1" else ERNIE
    path = save(tmp_path_factory.mktemp("m") / "m.safetensors", random_tensors(shapes))
    return load(path, dtype=torch.float32, device=CPU)


def ask(model: Model, **conditioning: Any) -> torch.Tensor:
    channels = 16 if model.family == "flux1" else 128
    context = torch.linspace(-1, 1, 3 * 24).reshape(1, 3, 24)
    return model.predict(
        torch.ones(1, channels, 4, 4), torch.tensor([0.5]), {"context": context, **conditioning}
    )


def test_absent_and_none_are_the_same(model: Model) -> None:
    nothing = dict.fromkeys(("control", "y", "guidance", "attention_mask", "ref_latents", "whatever"))
    assert torch.equal(ask(model, **nothing), ask(model))


def test_an_unknown_conditioning_is_refused_with_family_and_key(model: Model) -> None:
    with pytest.raises(UnsupportedRequestError) as caught:
        ask(model, clip_fea=torch.ones(1))
    assert "clip_fea" in caught.value.message
    assert model.adapter.title in caught.value.message


def test_inputs_of_any_float_dtype_are_cast(model: Model) -> None:
    context = torch.linspace(-1, 1, 3 * 24).reshape(1, 3, 24)
    exact = context.half().double()
    assert torch.equal(ask(model, context=exact), ask(model, context=exact.half()))


def test_one_tensor_in_several_lists_is_cast_once(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    shared, seen = torch.ones(1, 2, dtype=torch.float16), dict[str, Any]()

    def look(_: Any, x: torch.Tensor, __: torch.Tensor, given: dict[str, Any]) -> torch.Tensor:
        seen.update(given)
        return x

    monkeypatch.setattr(type(model.adapter), "predict", lambda _, *arguments: look(*arguments))
    monkeypatch.setattr(type(model.adapter), "conditioning", frozenset({"context", "control"}))
    ask(model, control={"input": [shared, None, shared], "output": [shared]})
    control = seen["control"]
    assert control["input"][0].dtype == model.dtype
    assert control["input"][0] is control["input"][2] is control["output"][0]


def test_answers_carry_no_graph_and_may_be_changed_in_place(model: Model) -> None:
    answer = ask(model)
    assert not answer.requires_grad
    answer += 1
