"""A MODEL from a header alone costs no memory and no time, however large the file is."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from comfyui import files
from comfyui.conftest import REPOSITORY, comfy_python, comfy_tree

pytestmark = [pytest.mark.comfyui, pytest.mark.timeout(120)]

PROBE = Path(__file__).with_name("skeleton_probe.py")
FLUX_WEIGHTS = 11_901_408_320


def test_flux_of_24_gb_is_a_model_in_a_second_and_50_megabytes(tmp_path: Path) -> None:
    file = tmp_path / "flux1-dev.safetensors"
    assert files.sparse_flux(file) > 23 * 2**30 - 2**30
    command = [str(comfy_python()), str(PROBE), str(comfy_tree()), str(REPOSITORY), str(file)]
    run = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert run.returncode == 0, run.stderr[-3000:]
    found = json.loads(run.stdout.splitlines()[-1])
    assert found["class"] == "Flux"
    assert found["weights"] == FLUX_WEIGHTS
    assert found["devices"] == ["meta"]
    assert found["guidance"] is True
    assert found["sigmas"] == 10000
    assert found["seconds"] < 1.0
    assert found["megabytes"] < 50
    assert found["local"] == [file.stat().st_size, 0, file.stat().st_size]
    assert found["elsewhere"] == [0, 0, 0]
    assert found["let_go"] < 0.1
