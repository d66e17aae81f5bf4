"""weight_dtype: what is rounded to fp8, and what never is."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from models.files import file_shapes, flux1_shapes, random_tensors, save
from models.quant import files
from models.quant.test_models import answer, load_as_on_a_gpu, values_of
from models.tiny import CONFIGS, differ
from outboard.engine.models.loader import load
from outboard.engine.models.quant.formats import INTEGER
from outboard.engine.models.wan import Wan
from outboard.protocol.errors import UnsupportedRequestError

CPU = torch.device("cpu")
DTYPES = {
    "fp8_e4m3fn": torch.float8_e4m3fn,
    "fp8_e4m3fn_fast": torch.float8_e4m3fn,
    "fp8_e5m2": torch.float8_e5m2,
}


@pytest.mark.parametrize("stored", [torch.bfloat16, torch.float32, torch.float8_e5m2])
@pytest.mark.parametrize("weight_dtype", DTYPES)
def test_every_tensor_is_rounded(weight_dtype: str, stored: torch.dtype, tmp_path: Path) -> None:
    tensors = {key: value.to(stored) for key, value in random_tensors(flux1_shapes()).items()}
    path = save(tmp_path / "m.safetensors", tensors)
    found = values_of(load(path, dtype=torch.float32, device=CPU, weight_dtype=weight_dtype))
    rounded = {key: value.to(DTYPES[weight_dtype]).float() for key, value in tensors.items()}
    assert [key for key, value in rounded.items() if not torch.equal(found[key], value)] == []


def test_wan_keeps_its_patch_embedding(tmp_path: Path) -> None:
    tensors = random_tensors(file_shapes(Wan(), CONFIGS["wan"]))
    path = save(tmp_path / "m.safetensors", tensors, "model.diffusion_model.")
    state = load(path, dtype=torch.float32, device=CPU, weight_dtype="fp8_e4m3fn").module.state_dict()
    for name in ("patch_embedding.weight", "patch_embedding.bias"):
        assert torch.equal(state[name], tensors[name].float())
    head = tensors["head.head.weight"]
    assert torch.equal(state["proj_out.weight"], head.to(torch.float8_e4m3fn).float())


def test_a_quantised_file_keeps_its_linear_layers(tmp_path: Path) -> None:
    tensors, values = files.model({files.BLOCK: "float8_e4m3fn"})
    path = files.save(tmp_path / "m.safetensors", tensors)
    found = values_of(load(path, dtype=torch.float32, device=CPU, weight_dtype="fp8_e5m2"))
    changed = {key for key, value in values.items() if not torch.equal(found[key], value)}
    assert changed
    assert all("_norm." in key for key in changed)
    assert all(torch.equal(found[key], values[key].to(torch.float8_e5m2).float()) for key in changed)


def test_a_gpu_keeps_the_rounded_weights_in_fp8(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = save(tmp_path / "m.safetensors", files.plain())
    plain = load(path, dtype=torch.float32, device=CPU, weight_dtype="fp8_e4m3fn")
    kept = load_as_on_a_gpu(path, monkeypatch, weight_dtype="fp8_e4m3fn")
    assert torch.equal(answer(kept), answer(plain))
    assert kept.nbytes < plain.nbytes / 3
    assert set(kept.low_bit_layers) == {"float8_e4m3fn unpacked at use"}


def test_only_fast_multiplies_in_fp8(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = save(tmp_path / "m.safetensors", files.plain())
    kernels = INTEGER | {"float8_e4m3fn"}
    slow, fast = (
        load_as_on_a_gpu(path, monkeypatch, kernels, dtype=torch.bfloat16, weight_dtype=weight_dtype)
        for weight_dtype in ("fp8_e4m3fn", "fp8_e4m3fn_fast")
    )
    assert "float8_e4m3fn" not in slow.low_bit_layers
    assert fast.low_bit_layers["float8_e4m3fn"] > 20
    assert 1e-3 < differ(answer(fast), answer(slow)) < 0.2


def test_an_unknown_one_is_refused(tmp_path: Path) -> None:
    path = save(tmp_path / "m.safetensors", files.plain())
    with pytest.raises(UnsupportedRequestError, match="fp4") as caught:
        load(path, dtype=torch.float32, device=CPU, weight_dtype="fp4")
    assert "fp8_e4m3fn_fast" in caught.value.hint
