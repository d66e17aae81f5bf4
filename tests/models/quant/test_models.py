"""Whole models with layers in every format: unpacked at load, kept for a GPU, mixed, cut and swapped."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from models import gguf_files
from models.files import TINY, flux1_shapes, random_tensors
from models.quant import files
from models.tiny import differ, noise
from outboard.engine.models.flux1 import to_checkpoint
from outboard.engine.models.loader import load, prepare
from outboard.engine.models.model import Model
from outboard.engine.models.quant import fill, kitchen, placement
from outboard.engine.models.quant.formats import FORMATS, INTEGER
from outboard.engine.models.quant.linear import QuantLinear
from outboard.protocol.errors import UnsupportedModelError

CPU, GPU = torch.device("cpu"), torch.device("cuda")
ALL = (*files.ORDINARY, files.SWAPPED)
NARROW = TINY | {"attention_head_dim": 32, "num_attention_heads": 3, "axes_dims_rope": (8, 12, 12)}


def everywhere(name: str) -> dict[str, str]:
    return dict.fromkeys(ALL, name)


def values_of(model: Model) -> dict[str, torch.Tensor]:
    """All weights in the file's layout, those in few bits unpacked."""
    state = dict(model.module.state_dict())
    for name, part in model.module.named_modules():
        if isinstance(part, QuantLinear):
            state[f"{name}.weight"] = part.weight
    return to_checkpoint(state)


def answer(model: Model) -> torch.Tensor:
    given = {"context": noise(1, 5, 24), "y": noise(1, 12), "guidance": torch.tensor([3.5])}
    return model.predict(noise(1, 16, 8, 8), torch.tensor([0.6]), given).float()


def load_as_on_a_gpu(
    path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kernels: frozenset[str] = INTEGER,
    **options: Any,
) -> Model:
    """Loaded on the CPU, in the forms that a GPU with these `kernels` would be given."""
    monkeypatch.setattr(placement, "kernel_available", lambda name, _: name in kernels)
    dtype = options.pop("dtype", torch.float32)
    prepared = prepare(path, dtype=dtype, device=CPU, **options)
    kept = placement.place(prepared.plan, prepared.module, dtype, GPU)
    return replace(prepared, kept=kept).load()


def assert_same(found: Mapping[str, torch.Tensor], expected: Mapping[str, torch.Tensor]) -> None:
    assert found.keys() == expected.keys()
    assert [key for key in expected if differ(found[key], expected[key]) > 1e-6] == []


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_loads_to_its_values(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fill, "VALUES", 40_000)  # pieces that end inside the parts of a fused layer
    tensors, values = files.model(everywhere(name))
    model = load(files.save(tmp_path / "m.safetensors", tensors), dtype=torch.float32, device=CPU)
    assert_same(values_of(model), values)
    form = name if name in INTEGER else f"{name} dequantised"
    assert model.low_bit_layers == {form: len(ALL)}


@pytest.mark.parametrize("name", FORMATS)
def test_what_a_gpu_keeps_gives_the_same_answer(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensors, values = files.model(everywhere(name))
    path = files.save(tmp_path / "m.safetensors", tensors)
    plain = load(path, dtype=torch.float32, device=CPU)
    kept = load_as_on_a_gpu(path, monkeypatch)
    assert_same(values_of(kept), values)
    assert torch.equal(answer(kept), answer(plain))
    assert kept.low_bit_layers == {name if name in INTEGER else f"{name} unpacked at use": len(ALL)}
    assert sum(isinstance(part, QuantLinear) for part in kept.module.modules()) == 1 + 3 + 4 + 1 + 1
    assert kept.nbytes < plain.nbytes or name in INTEGER


@pytest.mark.parametrize("name", FORMATS)
def test_a_model_knows_beforehand_how_much_it_takes(name: str, tmp_path: Path) -> None:
    path = files.save(tmp_path / "m.safetensors", files.model(everywhere(name))[0])
    prepared = prepare(path, dtype=torch.float32, device=CPU)
    expected = prepared.nbytes
    assert prepared.load().nbytes == pytest.approx(expected, rel=1e-3)


def test_formats_may_differ_from_layer_to_layer(tmp_path: Path) -> None:
    mixed = dict(
        zip(ALL, ("nvfp4", "int8_tensorwise", "mxfp8", "float8_e4m3fn", "asym_w4a8_int8"), strict=True)
    )
    tensors, values = files.model(mixed)
    model = load(files.save(tmp_path / "m.safetensors", tensors), dtype=torch.float32, device=CPU)
    assert_same(values_of(model), values)
    assert sum(model.low_bit_layers.values()) == len(ALL)
    assert len(model.low_bit_layers) == len(ALL)


def test_products_in_fp8_follow_the_file_and_the_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensors, _ = files.model(everywhere("float8_e4m3fn"))
    careful = tensors | {
        f"{files.BLOCK}.comfy_quant": files.description(
            format="float8_e4m3fn", full_precision_matrix_mult=True
        )
    }
    path = files.save(tmp_path / "m.safetensors", careful)
    plain = load(path, dtype=torch.bfloat16, device=CPU)
    kernels = INTEGER | {"float8_e4m3fn"}
    fast = load_as_on_a_gpu(path, monkeypatch, kernels, dtype=torch.bfloat16)
    assert fast.low_bit_layers == {"float8_e4m3fn": 4, "float8_e4m3fn unpacked at use": 1}
    assert 1e-3 < differ(answer(fast), answer(plain)) < 0.1
    exact = load_as_on_a_gpu(path, monkeypatch, kernels, dtype=torch.float32)
    assert exact.low_bit_layers == {"float8_e4m3fn unpacked at use": 5}


@pytest.mark.parametrize("name", ["nvfp4", "mxfp8"])
def test_a_fused_layer_whose_scales_cannot_be_cut_is_unpacked(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """96 rows in each part, and scales interleaved over 128."""
    tensors, values = files.model(everywhere(name), random_tensors(flux1_shapes(NARROW)))
    path = files.save(tmp_path / "m.safetensors", tensors)
    model = load_as_on_a_gpu(path, monkeypatch, config=NARROW)
    assert_same(values_of(model), values)
    cut = {files.FUSED, files.SINGLE, files.SWAPPED}
    assert model.low_bit_layers == {f"{name} dequantised": len(cut), f"{name} unpacked at use": 2}


def test_padding_is_cut_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """24 columns of text are stored as 32."""
    tensors, values = files.model({"txt_in": "mxfp8"})
    assert tensors["txt_in.weight"].shape == (256, 32)
    path = files.save(tmp_path / "m.safetensors", tensors)
    config = files.WIDE
    for model in (
        load(path, dtype=torch.float32, device=CPU, config=config),
        load_as_on_a_gpu(path, monkeypatch, config=config),
    ):
        assert_same(values_of(model), values)
        assert answer(model).isfinite().all()


def test_gguf_blocks_stay_packed_on_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, values = gguf_files.flux1(tmp_path / "m.gguf", "Q8_0")
    plain = load(path, dtype=torch.float32, device=CPU)
    kept = load_as_on_a_gpu(path, monkeypatch)
    assert_same(values_of(kept), values)
    assert torch.equal(answer(kept), answer(plain))
    assert kept.low_bit_layers == {"Q8_0 unpacked at use": 23}
    assert kept.nbytes < plain.nbytes / 3


def test_only_an_nvidia_gpu_multiplies_in_fp8(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    monkeypatch.setattr(torch.version, "hip", None)
    assert kitchen.kernel_available("float8_e4m3fn", GPU)
    assert not kitchen.kernel_available("nvfp4", GPU)
    assert not kitchen.kernel_available("mxfp8", GPU)
    assert not kitchen.kernel_available("float8_e4m3fn", CPU)
    assert kitchen.kernel_available("int8_tensorwise", CPU)
    monkeypatch.setattr(torch.version, "hip", "6.4")
    assert not kitchen.kernel_available("float8_e4m3fn", GPU)


def test_a_kitchen_too_old_for_a_format_is_said_before_anything_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = files.save(tmp_path / "m.safetensors", files.model({files.BLOCK: "mxfp8"})[0])
    monkeypatch.setitem(kitchen.LAYOUTS, "mxfp8", "NoSuchLayout")
    kitchen.layout_of.cache_clear()
    with pytest.raises(UnsupportedModelError, match="does not know mxfp8") as caught:
        prepare(path, dtype=torch.float32, device=CPU)
    assert "comfy-kitchen>=" in caught.value.hint
    kitchen.layout_of.cache_clear()
