"""Quantised files against what a real ComfyUI made of them on the CPU: weights, layers and a whole model."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from golden import checkpoints
from golden.folder import entries, golden_root
from golden.test_dit import answer, distance
from outboard.engine.models.header import TensorInfo, read_header
from outboard.engine.models.loader import load
from outboard.engine.models.model import Model
from outboard.engine.models.plan import Read
from outboard.engine.models.quant.fill import LayerReader
from outboard.engine.models.quant.formats import INTEGER
from outboard.engine.models.quant.layer import Layer
from outboard.engine.models.quant.layers import stored
from outboard.engine.models.quant.linear import SMOOTHING, QuantLinear, SmoothedLinear
from outboard.engine.models.quant.placement import Kept
from outboard.engine.models.reader import Reader
from outboard.protocol.errors import ModelError

pytestmark = pytest.mark.golden

CPU = torch.device("cpu")
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
EXACT = {"fp32": 1e-6, "bf16": 2e-4}
"""comfy-kitchen's rotations round differently from release to release; all else is equal to the bit."""


def name_of(case: Mapping[str, Any]) -> str:
    return Path(case["path"]).stem.removeprefix("linear-").removeprefix("flux1-dev-mh-")


def without_outputs(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {key: value for key, value in tensors.items() if not key.startswith(("out.", "in."))}


class Golden:
    """One recorded linear layer, as our reader sees it."""

    def __init__(self, case: Mapping[str, Any]) -> None:
        self.tensors, _ = checkpoints.read_tensors(case["path"])
        self.header = read_header(golden_root() / case["path"])
        prefix = str(case["layer_prefix"]).removesuffix("lin.")
        names = {key: key.removeprefix(prefix) for key in without_outputs(self.header.tensors)}  # type: ignore[arg-type]
        self.found = stored(self.header, names, prefix)
        self.layer: Layer | None = self.found.layers.get("lin.weight")

    def linear(self, form: str) -> nn.Linear:
        weight = self.tensors[f"out.lin.weight@{form}"]
        linear = nn.Linear(weight.shape[1], weight.shape[0], device="meta", dtype=weight.dtype)
        bias = self.tensors[self.found.names["lin.bias"]].to(weight.dtype)
        linear.bias = nn.Parameter(bias, requires_grad=False)
        return linear

    def read(self, form: str) -> Read:
        assert self.layer is not None
        rows = self.tensors[f"out.lin.weight@{form}"].shape[0]
        return Read(self.layer.key, self.layer.info(), "lin.weight", 0, 0, rows, self.layer)

    def values(self, form: str) -> Tensor:
        """The weight as the loader would unpack it."""
        values = torch.empty_like(self.tensors[f"out.lin.weight@{form}"])
        with self.header.path.open("rb", buffering=0) as file:
            LayerReader(Reader(file, self.header, CPU, None, 1 << 20)).fill(values, self.read(form))
        return values

    def kept(self, form: str, *, native: bool) -> QuantLinear:
        """The layer with its weight as it is stored."""
        assert self.layer is not None
        with self.header.path.open("rb", buffering=0) as file:
            layers = LayerReader(Reader(file, self.header, CPU, None, 1 << 20))
            kept = Kept(self.layer, (self.read(form),), native)
            return layers.linear(kept, self.linear(form), DTYPES[form])

    def plain(self, form: str) -> nn.Linear:
        """The layer with its weight unpacked."""
        linear = self.linear(form)
        linear.weight = nn.Parameter(self.values(form), requires_grad=False)
        if self.layer is None or SMOOTHING not in self.layer.parts:
            return linear
        return SmoothedLinear(linear, self.tensors[self.layer.key.removesuffix("weight") + SMOOTHING])

    def answer(self, linear: nn.Module, form: str) -> Tensor:
        result: Tensor = linear(self.tensors["in.x"].to(DTYPES[form]))
        return result.detach()


LINEARS = entries("quant_linear")
QUANTISED = [case for case in LINEARS if Golden(case).layer is not None]


@functools.cache
def golden(path: str) -> Golden:
    return Golden(next(case for case in LINEARS if case["path"] == path))


def test_only_the_control_is_plain() -> None:
    assert {name_of(case) for case in LINEARS if case not in QUANTISED} <= {"unquantised-bf16"}


@pytest.mark.parametrize("form", DTYPES)
@pytest.mark.parametrize("case", QUANTISED, ids=name_of)
def test_every_layout_unpacks_to_the_recorded_weight(case: Mapping[str, Any], form: str) -> None:
    ours, recorded = golden(case["path"]).values(form), golden(case["path"]).tensors[f"out.lin.weight@{form}"]
    assert ours.shape == recorded.shape
    assert distance(ours, recorded) < EXACT[form]
    if "convrot256" not in case["path"]:
        assert torch.equal(ours, recorded)


@pytest.mark.parametrize("form", DTYPES)
@pytest.mark.parametrize("case", QUANTISED, ids=name_of)
def test_every_layout_gives_the_recorded_output_on_the_cpu(case: Mapping[str, Any], form: str) -> None:
    found = golden(case["path"])
    assert found.layer is not None
    whole = found.layer.format in INTEGER
    linear = found.kept(form, native=True) if whole else found.plain(form)
    assert distance(found.answer(linear, form), found.tensors[f"out.y_emulated@{form}"]) < EXACT[form]


@pytest.mark.parametrize("form", DTYPES)
@pytest.mark.parametrize("case", QUANTISED, ids=name_of)
def test_unpacking_at_use_is_the_same_as_at_load(case: Mapping[str, Any], form: str) -> None:
    found = golden(case["path"])
    kept, plain = found.kept(form, native=False), found.plain(form)
    assert torch.equal(kept.weight, plain.weight)
    assert torch.equal(found.answer(kept, form), found.answer(plain, form))


@pytest.mark.parametrize("form", DTYPES)
@pytest.mark.parametrize(
    "case", [case for case in QUANTISED if "out.y_native@fp32" in case["shapes"]], ids=name_of
)
def test_products_in_few_bits_give_what_comfyui_computes_on_a_gpu(case: Mapping[str, Any], form: str) -> None:
    found = golden(case["path"])
    ours = found.answer(found.kept(form, native=True), form)
    assert distance(ours, found.tensors[f"out.y_native@{form}"]) < EXACT[form]


@pytest.mark.parametrize("case", QUANTISED, ids=name_of)
def test_a_layer_that_lacks_a_tensor_or_has_one_too_many_is_refused(case: Mapping[str, Any]) -> None:
    """Save what a file may lack: a bias, an input's scale or smoothing; plain fp8 has no more to lose."""
    header, stem = golden(case["path"]).header, str(case["layer_prefix"])
    prefix = stem.removesuffix("lin.")
    names = {key: key.removeprefix(prefix) for key in without_outputs(header.tensors)}  # type: ignore[arg-type]
    optional = (".bias", "input_scale", "scale_input", "pre_quant_scale")
    needed = [key for key in names if not key.endswith(optional)]
    for key in needed if len(needed) > 1 else []:
        with pytest.raises(ModelError) as caught:
            stored(header, {other: name for other, name in names.items() if other != key}, prefix)
        assert header.path.name in caught.value.message
        assert "lin" in caught.value.message or "scaled_fp8" in caught.value.message
    extra = dict(header.tensors) | {f"{stem}weight_scale_3": TensorInfo("F32", (), 0, 4)}
    found = stored(
        replace(header, tensors=extra), names | {f"{stem}weight_scale_3": "lin.weight_scale_3"}, prefix
    )
    assert "lin.weight_scale_3" in found.names  # for the key map, which no family ties it in


MODELS = entries("quant_model", absent_ok=True)


def model_of(case: Mapping[str, Any], form: str, folder: Path) -> tuple[Model, dict[str, Tensor], Any]:
    """The recorded file without its outputs, loaded; all tensors; and the dit_case it was recorded with."""
    tensors, metadata = checkpoints.read_tensors(case["path"])
    path = folder / "model.safetensors"
    kept = {key: metadata[key] for key in ("_quantization_metadata",) if key in metadata}
    save_file(without_outputs(tensors), path, kept or None)
    recorded = next(entry for entry in entries("dit_case") if entry["path"] == case["case"])
    config = json.loads(read_header(golden_root() / case["case"]).metadata["diffusers_config"])
    return load(path, dtype=DTYPES[form], device=CPU, config=config), tensors, recorded


@pytest.mark.parametrize("form", DTYPES)
@pytest.mark.parametrize("case", MODELS, ids=name_of)
def test_a_quantised_model_gives_the_recorded_output(
    case: Mapping[str, Any], form: str, tmp_path: Path
) -> None:
    model, tensors, recorded = model_of(case, form, tmp_path)
    inputs, metadata = checkpoints.read_tensors(recorded["path"])
    v = answer(model, inputs, metadata)
    assert distance(v, tensors[f"out.v@{form}"]) < recorded[f"tol_{form}_rel"]
    assert model.low_bit_layers == {"float8_e4m3fn dequantised": 13}
