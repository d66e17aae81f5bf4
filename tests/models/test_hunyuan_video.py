"""HunyuanVideo's translation of a request; the numbers themselves are compared in tests/golden."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest
import torch

from models.files import describe, file_shapes, write
from models.tiny import CONFIGS, differ, make, noise
from outboard.engine.models.header import read_header
from outboard.engine.models.hunyuan_video import HunyuanVideo
from outboard.engine.models.model import Model
from outboard.engine.models.registry import detect
from outboard.protocol.errors import InvalidRequestError, UnsupportedModelError, UnsupportedRequestError

TINY = CONFIGS["hunyuan_video"]
COMFYUI = {
    "txt_in.t_embedder.mlp.0.": "txt_in.t_embedder.in_layer.",
    "txt_in.t_embedder.mlp.2.": "txt_in.t_embedder.out_layer.",
    "txt_in.c_embedder.linear_1.": "txt_in.c_embedder.in_layer.",
    "txt_in.c_embedder.linear_2.": "txt_in.c_embedder.out_layer.",
    "_in.mlp.0.": "_in.in_layer.",
    "_in.mlp.2.": "_in.out_layer.",
    "_mod.linear.": "_mod.lin.",
    ".modulation.linear.": ".modulation.lin.",
    "_attn_qkv.": "_attn.qkv.",
    "_attn_proj.": "_attn.proj.",
    "mlp.fc1.": "mlp.0.",
    "mlp.fc2.": "mlp.2.",
    "_attn_q_norm.": "_attn.norm.query_norm.",
    "_attn_k_norm.": "_attn.norm.key_norm.",
    ".q_norm.": ".norm.query_norm.",
    ".k_norm.": ".norm.key_norm.",
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return make(HunyuanVideo(), TINY, tmp_path_factory.mktemp("hunyuan"))


def predict(model: Model, x: torch.Tensor | None = None, **changes: Any) -> torch.Tensor:
    x = noise(1, 4, 2, 6, 8) if x is None else x
    rows = x.shape[0]
    given = {"context": noise(rows, 5, 24), "y": noise(rows, 12), "guidance": torch.full((rows,), 6.0)}
    return model.predict(x, torch.full((rows,), 700.0), given | changes)


def test_comfyuis_own_key_names_are_recognised(tmp_path: Path) -> None:
    shapes = file_shapes(HunyuanVideo(), TINY)
    resaved = {f"model.model.{as_comfyui_saves(name)}": shape for name, shape in shapes.items()}
    detected = detect(read_header(write(tmp_path / "m.safetensors", describe(resaved))))
    assert (detected.prefix, set(detected.contents)) == ("model.model.", set(shapes))


def as_comfyui_saves(name: str) -> str:
    return functools.reduce(lambda key, pair: key.replace(*pair), COMFYUI.items(), name)


def test_later_networks_with_the_same_blocks_are_refused_by_name(tmp_path: Path) -> None:
    shapes = file_shapes(HunyuanVideo(), TINY) | {"cond_type_embedding.weight": (3, 128)}
    with pytest.raises(UnsupportedModelError, match=r"HunyuanVideo 1\.5"):
        detect(read_header(write(tmp_path / "m.safetensors", describe(shapes))))


def test_any_even_size_comes_back_as_it_went(model: Model) -> None:
    assert predict(model, noise(2, 4, 3, 2, 10)).shape == (2, 4, 3, 2, 10)
    with pytest.raises(InvalidRequestError, match="even"):
        predict(model, noise(1, 4, 1, 5, 8))


def test_words_behind_the_mask_count_in_the_pooling_alone(model: Model) -> None:
    context, mask = noise(1, 5, 24), torch.tensor([[1, 1, 1, 0, 0]])
    masked = predict(model, context=context, attention_mask=mask)
    assert differ(masked, predict(model, context=context)) > 1e-6
    swapped = context[:, [0, 1, 2, 4, 3]]
    assert differ(predict(model, context=swapped, attention_mask=mask), masked) < 1e-5
    changed = context + torch.tensor([0.0, 0, 0, 1, 1])[None, :, None]
    assert differ(predict(model, context=changed, attention_mask=mask), masked) > 1e-5


def test_a_mask_with_holes_is_refused(model: Model) -> None:
    with pytest.raises(UnsupportedRequestError, match="in the middle"):
        predict(model, attention_mask=torch.tensor([[1, 0, 1, 1, 1]]))


def test_a_guidance_is_needed_by_a_distilled_model(model: Model) -> None:
    assert differ(predict(model, guidance=torch.tensor([1.0])), predict(model)) > 1e-6
    with pytest.raises(InvalidRequestError, match="guidance"):
        predict(model, guidance=None)


@pytest.mark.parametrize("key", ["control", "guiding_frame_index", "ref_latent", "txt_byt5"])
def test_what_this_family_cannot_use_is_refused(model: Model, key: str) -> None:
    foreign: dict[str, Any] = {key: [torch.ones(1)]}
    with pytest.raises(UnsupportedRequestError, match=f"HunyuanVideo.*{key}"):
        predict(model, **foreign)
