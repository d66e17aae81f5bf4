"""Loading weights: exact values, checks before the first byte, cancelling, and memory."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from models.files import ERNIE, TINY, describe, flux1_shapes, random_tensors, save, write
from outboard.engine.models import reader
from outboard.engine.models.flux1 import to_checkpoint
from outboard.engine.models.loader import inspect, load
from outboard.protocol.errors import CancelledError, CheckpointError

CPU = torch.device("cpu")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return save(tmp_path / "tiny.safetensors", random_tensors(flux1_shapes()))


def altered(tmp_path: Path, change: dict[str, tuple[int, ...] | None]) -> Path:
    shapes = {name: shape for name, shape in (flux1_shapes() | change).items() if shape is not None}
    return write(tmp_path / "altered.safetensors", describe(shapes))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("stored", [torch.bfloat16, torch.float16, torch.float32])
def test_weights_arrive_exactly_in_the_wanted_dtype(
    tmp_path: Path, dtype: torch.dtype, stored: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "PIECE", 1000)  # pieces end inside rows
    tensors = random_tensors(flux1_shapes(), stored)
    model = load(save(tmp_path / "m.safetensors", tensors), dtype=dtype, device=CPU)
    exported = to_checkpoint(model.module.state_dict())
    assert exported.keys() == tensors.keys()
    assert all(torch.equal(exported[name], tensor.to(dtype)) for name, tensor in tensors.items())


def test_a_resaved_prefixed_file_gives_the_same_model(path: Path, tmp_path: Path) -> None:
    tensors = {
        name.replace(".scale", ".weight"): value for name, value in random_tensors(flux1_shapes()).items()
    }
    resaved = save(tmp_path / "resaved.safetensors", tensors, "model.diffusion_model.")
    one = load(path, dtype=torch.bfloat16, device=CPU).module.state_dict()
    two = load(resaved, dtype=torch.bfloat16, device=CPU).module.state_dict()
    assert all(torch.equal(one[name], two[name]) for name in one)


def test_a_loaded_model_describes_itself(path: Path) -> None:
    model = load(path, dtype=torch.bfloat16, device=CPU)
    assert (model.family, model.dtype, model.device) == ("flux1", torch.bfloat16, CPU)
    assert model.nbytes == path.stat().st_size - model.header.data_start
    assert not model.module.training
    assert not any(parameter.requires_grad for parameter in model.module.parameters())


WRONG: dict[str, tuple[dict[str, tuple[int, ...] | None], str]] = {
    "missing": ({"final_layer.linear.bias": None}, "1 missing: final_layer.linear.bias"),
    "missing block": (
        {name: None for name in flux1_shapes() if name.startswith("single_blocks.0.linear2")},
        "2 missing: single_blocks.0.linear2.bias, single_blocks.0.linear2.weight",
    ),
    "unused": ({"surprise.weight": (3, 3)}, "1 unused: surprise.weight"),
    "wrong shape": (
        {"time_in.in_layer.weight": (128, 255)},
        "1 wrong shape: time_in.in_layer.weight (is [128, 255]",
    ),
    "fused too tall": (
        {"single_blocks.1.linear1.bias": (900,)},
        "single_blocks.1.linear1.bias (is [900], needs [896])",
    ),
    "fused too short": (
        {"double_blocks.0.txt_attn.qkv.bias": (383,)},
        "double_blocks.0.txt_attn.qkv.bias (is [383], needs [384])",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_file_that_does_not_fit_is_refused_before_any_weight_is_read(case: str, tmp_path: Path) -> None:
    change, said = WRONG[case]
    path = altered(tmp_path, change)
    calls: list[tuple[int, int]] = []
    with pytest.raises(CheckpointError) as caught:
        load(path, dtype=torch.bfloat16, device=CPU, progress=lambda *done: calls.append(done))
    assert said in caught.value.message
    assert str(path) in caught.value.message
    assert caught.value.details
    assert not calls


def test_all_faults_are_named_at_once_and_long_lists_are_shortened(tmp_path: Path) -> None:
    surplus: dict[str, tuple[int, ...] | None] = {f"extra.{number:02}": (1,) for number in range(20)}
    with pytest.raises(CheckpointError) as caught:
        inspect(altered(tmp_path, surplus | {"img_in.bias": None}))
    assert "1 missing: img_in.bias; 20 unused" in caught.value.message
    assert "and 12 more" in caught.value.message
    assert len(caught.value.details["unused"].splitlines()) == 20


def test_names_in_errors_are_those_of_the_file(tmp_path: Path) -> None:
    shapes = {"model.diffusion_model." + name: shape for name, shape in flux1_shapes().items()}
    del shapes["model.diffusion_model.img_in.bias"]
    with pytest.raises(CheckpointError, match=r"1 missing: model\.diffusion_model\.img_in\.bias"):
        inspect(write(tmp_path / "m.safetensors", describe(shapes)))


def test_progress_counts_every_byte_once(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "PIECE", 4096)
    calls: list[tuple[int, int]] = []
    model = load(path, dtype=torch.bfloat16, device=CPU, progress=lambda *done: calls.append(done))
    done = [call[0] for call in calls]
    assert done == sorted(set(done))
    assert calls[-1] == (model.nbytes, model.nbytes)


def live_parameters(shape: tuple[int, ...]) -> Iterator[torch.Tensor]:
    gc.collect()
    for item in gc.get_objects():
        if type(item) in {torch.Tensor, torch.nn.Parameter} and item.shape == shape and not item.is_meta:
            yield item


def test_cancelling_frees_everything(tmp_path: Path) -> None:
    odd = TINY | {"joint_attention_dim": 37}  # a shape that nothing else in this process has
    path = save(tmp_path / "m.safetensors", random_tensors(flux1_shapes(odd)))
    gc.collect()

    def cancel(done: int, total: int) -> None:
        if done > total / 2:
            raise CancelledError("stop")

    with pytest.raises(CancelledError):
        load(path, dtype=torch.bfloat16, device=CPU, progress=cancel)
    assert not list(live_parameters((128, 37)))
    assert load(path, dtype=torch.bfloat16, device=CPU).nbytes
    path.unlink()


def test_a_file_cut_while_it_loads_is_an_error(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "PIECE", 4096)

    def cut(done: int, total: int) -> None:
        with path.open("r+b") as file:
            file.truncate(path.stat().st_size // 2)

    with pytest.raises(CheckpointError, match="became shorter"):
        load(path, dtype=torch.bfloat16, device=CPU, progress=cut)


def test_ernie_image_loads(tmp_path: Path) -> None:
    tensors = random_tensors(ERNIE)
    model = load(save(tmp_path / "m.safetensors", tensors), dtype=torch.bfloat16, device=CPU)
    assert model.family == "ernie_image"
    assert all(torch.equal(value, tensors[name]) for name, value in model.module.state_dict().items())


LARGE = TINY | {
    "num_layers": 3,
    "num_single_layers": 4,
    "num_attention_heads": 8,
    "joint_attention_dim": 4096,
    "pooled_projection_dim": 768,
}


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="the kernel's own account is Linux's")
@pytest.mark.parametrize("stored", ["BF16", "F32"])
def test_peak_memory_stays_below_the_file_and_a_fifth(tmp_path: Path, stored: str) -> None:
    """Measured in a process of its own; see memory_probe.py for what is counted."""
    path = write(tmp_path / "large.safetensors", describe(flux1_shapes(LARGE), stored))
    size = path.stat().st_size
    assert size > 300_000_000
    probe = [sys.executable, str(Path(__file__).with_name("memory_probe.py")), str(path), "bfloat16"]
    grown: dict[str, Any] = json.loads(
        subprocess.run(probe, check=True, capture_output=True, text=True).stdout
    )
    budget = grown["model"] * 1.2
    assert grown["model"] <= grown["RssAnon"] < budget <= size * 1.2
    assert grown["total"] < budget
    assert grown["RssFile"] < 20_000_000
