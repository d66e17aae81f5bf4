"""How much memory a quantised file takes while it loads, in a process of its own (see memory_probe.py)."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from models.files import TINY, describe, flux1_shapes, write

PROBE = Path(__file__).parents[1] / "memory_probe.py"
LARGE = TINY | {
    "num_layers": 3,
    "num_single_layers": 4,
    "num_attention_heads": 8,
    "joint_attention_dim": 4096,
    "pooled_projection_dim": 768,
}


def int8_file(path: Path) -> Path:
    """Every matrix of every block in rotated int8."""
    shapes = dict(flux1_shapes(LARGE))
    dtypes: dict[str, str] = {}
    layers: dict[str, object] = {}
    for key, shape in flux1_shapes(LARGE).items():
        if len(shape) == 2 and "blocks." in key:
            layer = key.removesuffix(".weight")
            shapes[f"{layer}.weight_scale"] = (shape[0], 1)
            dtypes |= {key: "I8", f"{layer}.weight_scale": "F32"}
            layers[layer] = {"format": "int8_tensorwise", "convrot": True}
    metadata = {"_quantization_metadata": json.dumps({"layers": layers})}
    return write(path, describe(shapes, "BF16", **dtypes), metadata)


def peak(path: Path) -> Mapping[str, Any]:
    command = [sys.executable, str(PROBE), str(path), "bfloat16"]
    grown: dict[str, Any] = json.loads(
        subprocess.run(command, check=True, capture_output=True, text=True).stdout
    )
    return grown


pytestmark = pytest.mark.skipif(
    not Path("/proc/self/clear_refs").exists(), reason="the kernel's own account is Linux's"
)


def test_what_stays_as_stored_takes_no_more_than_the_file_and_a_seventh(tmp_path: Path) -> None:
    path = int8_file(tmp_path / "m.safetensors")
    size = path.stat().st_size
    assert size > 190_000_000
    grown = peak(path)
    assert size * 0.95 < grown["model"] <= size
    assert grown["total"] < size * 1.15


def test_what_is_unpacked_takes_no_more_than_the_model_and_a_seventh(tmp_path: Path) -> None:
    path = write(tmp_path / "m.safetensors", describe(flux1_shapes(LARGE), "F8_E4M3"))
    grown = peak(path)
    assert grown["model"] > 1.9 * path.stat().st_size
    assert grown["total"] < grown["model"] * 1.15
