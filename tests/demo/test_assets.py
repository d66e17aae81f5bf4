from __future__ import annotations

import json
import subprocess
import sys

from outboard.engine.demo import assets
from outboard.engine.models.header import read_header


def test_assets_are_shipped_and_small() -> None:
    sizes = [path.stat().st_size for path in (assets.MODEL, assets.CONDITIONING, assets.JUDGE)]
    assert all(size > 1000 for size in sizes)
    assert sum(sizes) <= 10_000_000


def test_model_lies_where_a_model_list_finds_it() -> None:
    assert assets.MODEL_ROOT.name == "diffusion_models"
    assert [path.name for path in assets.MODEL_ROOT.glob("*.safetensors")] == [assets.MODEL_NAME]


def test_paths_need_no_torch() -> None:
    code = (
        "import json, sys; from outboard.engine.demo import assets;"
        "print(json.dumps([str(assets.MODEL), 'torch' in sys.modules]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [str(assets.MODEL), False]


def test_model_is_a_flux1_schnell_in_bf16() -> None:
    header = read_header(assets.MODEL)
    assert {info.dtype for info in header.tensors.values()} == {"BF16"}
    assert header.tensors["img_in.weight"].shape == (256, 64)
    assert "double_blocks.0.img_attn.norm.query_norm.scale" in header.tensors
    assert not any(name.startswith("guidance_in.") for name in header.tensors)
