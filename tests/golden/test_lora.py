"""LoRA files in every recorded naming style, against the outputs of a real ComfyUI with the same file."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from golden import checkpoints
from golden.folder import SUMMARY, entries
from golden.test_dit import answer, distance, model_of
from golden.test_quant import without_outputs
from outboard.engine.lora.file import LoraContents, read_lora
from outboard.engine.lora.names import comfy_name
from outboard.engine.lora.overlay import Overlay
from outboard.engine.models.model import Model
from outboard.protocol.errors import CheckpointError

pytestmark = pytest.mark.golden

DTYPES = {"out.v": torch.float32, "out.v_bf16": torch.bfloat16}
EVERY = entries("lora", absent_ok=True)
MATCHED = [entry for entry in EVERY if entry["matched"]]
IGNORED = [entry for entry in EVERY if not entry["matched"]]


def name_of(entry: Mapping[str, Any]) -> str:
    return f"{entry['family']}-{entry['style']}"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("lora")


def base_case(entry: Mapping[str, Any]) -> dict[str, Any]:
    return next(case for case in entries("dit_case") if case["path"] == entry["base_case"])


def lora_file(entry: Mapping[str, Any], folder: Path) -> Path:
    path = folder / Path(entry["path"]).name
    save_file(without_outputs(checkpoints.read_tensors(entry["path"])[0]), path)
    return path


def contents_of(entry: Mapping[str, Any], model: Model, folder: Path) -> LoraContents:
    return read_lora(lora_file(entry, folder), model)


def outputs(entry: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """Name of each recorded output, and the strength it was recorded with."""
    for name in entry["shapes"]:
        if name.startswith("out."):
            yield name, float(name.partition("@")[2])


@pytest.mark.parametrize("entry", MATCHED, ids=name_of)
def test_as_many_weights_are_found_as_comfyui_finds(entry: Mapping[str, Any], folder: Path) -> None:
    model = model_of(base_case(entry), torch.float32, folder)
    recorded = checkpoints.read_tensors(entry["path"])[1]
    found = contents_of(entry, model, folder)
    assert found.matched == entry["matched"]
    names = {comfy_name(model.family, model.adapter.canonical(patch.key)) for patch in found.patches}
    assert {f"diffusion_model.{name}" for name in names} == set(json.loads(recorded["matched_comfy_keys"]))
    assert list(found.unmatched) == sorted(json.loads(recorded["lora_keys_not_loaded_by_comfyui"]))
    assert len(found.unmatched) == entry["unmatched_keys"]


@pytest.mark.parametrize(
    ("entry", "output", "strength"),
    [
        pytest.param(entry, name, strength, id=f"{name_of(entry)}-{name}")
        for entry in MATCHED
        for name, strength in outputs(entry)
    ],
)
def test_the_output_is_comfyuis(
    entry: Mapping[str, Any], output: str, strength: float, folder: Path, worst: dict[str, float]
) -> None:
    case = base_case(entry)
    dtype = DTYPES[output.partition("@")[0]]
    model = model_of(case, dtype, folder)
    inputs, recorded = checkpoints.read_tensors(case["path"])
    stock = checkpoints.read_tensors(entry["path"])[0][output]
    overlay = Overlay(model)
    before = answer(model, inputs, recorded)
    overlay.use(contents_of(entry, model, folder).at(strength))
    v = answer(model, inputs, recorded)
    overlay.use(())
    assert torch.equal(answer(model, inputs, recorded), before)
    form = "fp32" if dtype == torch.float32 else "bf16"
    error = distance(v, stock)
    worst[form] = max(error, worst.get(form, 0.0))
    assert error < case[f"tol_{form}_rel"]
    assert distance(before, stock) > 10 * error or form == "bf16"


@pytest.mark.parametrize("entry", [entry for entry in MATCHED if "out.v@0.8" in entry["shapes"]], ids=name_of)
def test_every_changed_weight_is_comfyuis(entry: Mapping[str, Any], folder: Path) -> None:
    model = model_of(base_case(entry), torch.float32, folder)
    recorded = json.loads(checkpoints.read_tensors(entry["path"])[1]["patched_checks_at_0_8_fp32"])
    overlay = Overlay(model)
    before = weights(overlay, model, recorded)
    overlay.use(contents_of(entry, model, folder).at(0.8))
    after = weights(overlay, model, recorded)
    overlay.use(())
    for key, check in recorded.items():
        assert list(after[key].shape) == check["shape"]
        assert float(after[key].sum()) == pytest.approx(check["sum"], rel=1e-5, abs=1e-5 * check["abs_sum"])
        assert float(after[key].abs().sum()) == pytest.approx(check["abs_sum"], rel=1e-5)
        assert float((after[key] - before[key]).norm()) == pytest.approx(check["delta_l2"], rel=1e-4)


def weights(overlay: Overlay, model: Model, keys: Mapping[str, Any]) -> dict[str, Tensor]:
    """Weights of the model in the file's layout, by ComfyUI's names, in float64."""
    found = {}
    for key in keys:
        weight = overlay._layout.find(key.removeprefix("diffusion_model."))
        whole = torch.empty(weight.shape, dtype=torch.float64)
        for read in weight.reads:
            values = model.module.get_parameter(read.target)
            whole[read.first :][: read.rows] = values[read.target_first :][: read.rows]
        found[key] = whole
    return found


@pytest.mark.parametrize("entry", IGNORED, ids=name_of)
def test_a_style_that_comfyui_ignores_is_refused(entry: Mapping[str, Any], folder: Path) -> None:
    model = model_of(base_case(entry), torch.float32, folder)
    with pytest.raises(CheckpointError) as caught:
        contents_of(entry, model, folder)
    assert Path(entry["path"]).name in caught.value.message
    assert model.adapter.title in caught.value.message


@pytest.fixture(scope="module")
def worst(pytestconfig: pytest.Config) -> Iterator[dict[str, float]]:
    errors: dict[str, float] = {}
    yield errors
    listed = ", ".join(f"{error:.1e} in {form}" for form, error in sorted(errors.items()))
    line = f"LoRA: {len(MATCHED)} styles compared with stock, {len(IGNORED)} refused; worst error {listed}"
    pytestconfig.stash.setdefault(SUMMARY, []).append(line)
