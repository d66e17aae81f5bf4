"""weight_dtype and quantised files: the same answer as the network ComfyUI itself loads from the file."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from comfyui import versions
from comfyui.conftest import comfy_python, comfy_tree
from comfyui.quantised import INTEGER_TOLERANCE
from models.files import flux1_shapes, random_tensors
from models.quant import files
from models.tiny import differ, noise
from outboard.engine.models.loader import load

pytestmark = [pytest.mark.comfyui, pytest.mark.timeout(300)]

PROBE = Path(__file__).with_name("weights_probe.py")
WEIGHT_DTYPES = ("default", "fp8_e4m3fn", "fp8_e4m3fn_fast", "fp8_e5m2")

SIZES = files.WIDE


def inputs() -> dict[str, torch.Tensor]:
    return {
        "x": noise(1, 16, 8, 10),
        "timestep": torch.tensor([0.6]),
        "context": noise(1, 5, int(str(SIZES["joint_attention_dim"]))),
        "y": noise(1, int(str(SIZES["pooled_projection_dim"]))),
        "guidance": torch.tensor([3.5]),
    }


def comfyui_says(path: Path, *weight_dtypes: str) -> dict[str, torch.Tensor]:
    given, told = path.with_name("given.safetensors"), path.with_name("told.safetensors")
    save_file(inputs(), given)
    command = [str(comfy_python()), str(PROBE), *map(str, (comfy_tree(), path, given, told)), *weight_dtypes]
    run = subprocess.run(command, capture_output=True, text=True, check=False, cwd=path.parent)
    assert run.returncode == 0, run.stderr[-3000:]
    return load_file(told)


def we_say(path: Path, weight_dtype: str) -> torch.Tensor:
    given = inputs()
    model = load(path, dtype=torch.float32, device=torch.device("cpu"), weight_dtype=weight_dtype)
    return model.predict(given.pop("x"), given.pop("timestep"), given)


def compare(path: Path, *weight_dtypes: str) -> Mapping[str, float]:
    theirs = comfyui_says(path, *weight_dtypes)
    return {name: differ(we_say(path, name), theirs[name]) for name in weight_dtypes}


def test_every_weight_dtype_means_what_it_means_to_unetloader(tmp_path: Path) -> None:
    tensors = random_tensors(flux1_shapes(SIZES), spread=0.1)
    found = compare(files.save(tmp_path / "m.safetensors", tensors), *WEIGHT_DTYPES)
    assert max(found.values()) < 5e-6, found


@pytest.mark.skipif(versions.first().old, reason="an old ComfyUI reads quantised files otherwise")
@pytest.mark.parametrize("weight_dtype", ["default", "fp8_e5m2"])
@pytest.mark.parametrize(
    ("formats", "tolerance"),
    [
        (("nvfp4", "mxfp8", "float8_e4m3fn", "float8_e5m2", "nvfp4"), 5e-6),
        (("nvfp4", "int8_tensorwise", "mxfp8", "float8_e4m3fn", "float8_e5m2"), INTEGER_TOLERANCE),
    ],
    ids=["products in floats", "some products in integers"],
)
def test_a_file_of_mixed_formats_gives_the_same_answer(
    formats: tuple[str, ...], tolerance: float, weight_dtype: str, tmp_path: Path
) -> None:
    mixed = dict(zip((*files.ORDINARY, files.SWAPPED), formats, strict=True))
    tensors, _ = files.model(mixed, random_tensors(flux1_shapes(SIZES), spread=0.1))
    found = compare(files.save(tmp_path / "m.safetensors", tensors), weight_dtype)
    assert found[weight_dtype] < tolerance
