"""A MODEL from a header alone costs no memory and no time, however large the file is."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import save_file

from comfyui import files, quantised, shapes, versions
from comfyui.conftest import REPOSITORY, comfy_python, comfy_tree
from comfyui.families import CHROMA, FLUX2, HUNYUAN, LTX, QWEN, SD3, SMALL, WAN, WAN_5B, WAN_IMAGE, Z_IMAGE
from comfyui.graphs import Subject

pytestmark = [pytest.mark.comfyui, pytest.mark.timeout(180)]

PROBE, DTYPES = (Path(__file__).with_name(name) for name in ("skeleton_probe.py", "dtype_probe.py"))
FLUX_WEIGHTS = 11_901_408_320
WAN_14B = {"num_attention_heads": 40, "num_layers": 40, "ffn_dim": 13824}
#: ComfyUI's class for a file of the published size, and what of the small one that size changes.
PUBLISHED: Mapping[str, tuple[Subject, Mapping[str, Any]]] = {
    "Flux2": (
        FLUX2,
        {"num_layers": 8, "num_single_layers": 48, "num_attention_heads": 48, "joint_attention_dim": 15360},
    ),
    "WAN21": (WAN, WAN_14B),
    "WAN21 ": (WAN_IMAGE, WAN_14B | {"added_kv_proj_dim": 5120}),
    "WAN22": (WAN_5B, {"num_attention_heads": 24, "num_layers": 30, "ffn_dim": 14336}),
    "QwenImage": (QWEN, {"num_attention_heads": 24, "num_layers": 60, "joint_attention_dim": 3584}),
    "Lumina2": (
        Z_IMAGE,
        {
            "dim": 3840,
            "n_layers": 30,
            "n_refiner_layers": 2,
            "n_heads": 30,
            "n_kv_heads": 30,
            "cap_feat_dim": 2560,
        },
    ),
    "Chroma": (
        CHROMA,
        {
            "num_attention_heads": 24,
            "joint_attention_dim": 4096,
            "approximator_hidden_dim": 5120,
            "approximator_layers": 5,
        },
    ),
    "SD3": (
        SD3,
        {
            "num_layers": 38,
            "num_attention_heads": 38,
            "joint_attention_dim": 4096,
            "caption_projection_dim": 2432,
            "pooled_projection_dim": 2048,
            "dual_attention_layers": [],
        },
    ),
    "HunyuanVideo": (
        HUNYUAN,
        {"num_attention_heads": 24, "num_layers": 20, "num_single_layers": 40, "text_embed_dim": 4096},
    ),
    "LTXV": (LTX, {"attention_head_dim": 64, "cross_attention_dim": 2048, "num_layers": 28}),
}


def probe(folder: Path, *paths: Path, script: Path = PROBE) -> list[Any]:
    command = [str(comfy_python()), str(script), str(comfy_tree()), str(REPOSITORY), *map(str, paths)]
    run = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)
    assert run.returncode == 0, run.stderr[-3000:]
    return [json.loads(line) for line in run.stdout.splitlines() if line.startswith(("{", "["))]


def test_flux_of_24_gb_is_a_model_in_a_second_and_50_megabytes(tmp_path: Path) -> None:
    file = tmp_path / "flux1-dev.safetensors"
    assert files.sparse(file, shapes.flux(3072, 19, 38, 4096, 768)) > 22 * 2**30
    (found,) = probe(tmp_path, file)
    assert found["class"] == "Flux"
    assert found["weights"] == FLUX_WEIGHTS
    assert found["devices"] == ["meta"]
    assert found["sigmas"] == 10000
    assert found["seconds"] < 1.0
    assert found["megabytes"] < 50
    assert found["local"] == [file.stat().st_size, 0, file.stat().st_size]
    assert found["elsewhere"] == [0, 0, 0]
    assert found["let_go"] < 0.1


def test_every_family_is_a_model_at_its_published_size(tmp_path: Path) -> None:
    """With as many weights as the file has, but for those ComfyUI does not use."""
    paths, sizes = [], []
    known = {name: case for name, case in PUBLISHED.items() if case[0].kind not in versions.first().lacks}
    for name, (subject, larger) in known.items():
        small = SMALL[subject.file]
        path = tmp_path / f"{name}.safetensors"
        sizes.append(files.sparse(path, type(small)(small.family, {**small.config, **larger}).shapes))
        paths.append(path)
    found = dict(zip(known, probe(tmp_path, *paths), strict=True))
    assert [model["class"] for model in found.values()] == [name.strip() for name in known]
    assert {device for model in found.values() for device in model["devices"]} == {"meta"}
    for size, model in zip(sizes, found.values(), strict=True):
        assert model["weights"] * 2 == pytest.approx(size, rel=1e-3)
        assert model["seconds"] < 5.0
    if "Lumina2" in known:
        assert "torch.float16" in found["Lumina2"]["dtypes"], "the norms that allow fp16 were not read"


@pytest.mark.skipif(versions.first().old, reason="an old ComfyUI reads quantised files otherwise")
def test_a_quantised_file_has_the_dtypes_comfyui_gives_it_on_any_device(tmp_path: Path) -> None:
    flux = files.weights(shapes.flux(128, 2, 2, 48, 24), seed=1)
    quantised.make(tmp_path, flux)
    save_file(flux, tmp_path / "bf16.safetensors")
    save_file({key: value.half() for key, value in flux.items()}, tmp_path / "fp16.safetensors")
    found = probe(tmp_path, *sorted(tmp_path.rglob("*.*")), script=DTYPES)
    assert len(found) == 4 * 9
    blocks = Path(quantised.GGUF).name
    assert [entry for entry in found if entry[0] != blocks and entry[2] != entry[3]] == []
    told = {(name, device): weight_dtype for name, device, _, _, weight_dtype in found}
    assert {key for key, value in told.items() if value != "default"} == {(quantised.PLAIN_FP8, "hopper")}
    assert told[quantised.PLAIN_FP8, "hopper"] == "fp8_e4m3fn"
    computed = {device: ours[1] for name, device, _, ours, _ in found if name == blocks}
    assert computed == {
        "cpu": "torch.float32",
        "ampere": "torch.bfloat16",
        "hopper": "torch.bfloat16",
        "turing": "torch.float16",
    }
