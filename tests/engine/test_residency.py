"""Which models stay in a rank's memory, which go, and what never costs a resident its place."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from models.files import describe, flux1_shapes, random_tensors, save, write
from models.tiny import noise
from outboard.engine.models.header import read_header
from outboard.engine.models.model import Model
from outboard.engine.rank.residency import Loan, Residency
from outboard.protocol.errors import CheckpointError, UnsupportedModelError
from outboard.protocol.messages.common import ModelRef, ModelSettings

CPU = torch.device("cpu")


def nothing(_done: int, _total: int) -> None:
    """Nobody watches the load."""


def ref(path: Path, name: str | None = None) -> ModelRef:
    header = read_header(path)
    return ModelRef(name=name or path.name, size=header.size, digest=header.digest)


def get(residency: Residency, path: Path, dtype: str = "auto") -> Loan:
    settings = ModelSettings.model_validate({"dtype": dtype})
    return residency.lend(residency.find(path, ref(path), settings), nothing)


def names(residency: Residency) -> list[str]:
    return [model.name for model in residency.describe()]


def answer(model: Model) -> torch.Tensor:
    given = {"context": noise(1, 3, 24), "y": noise(1, 12), "guidance": torch.tensor([3.5])}
    return model.predict(noise(1, 16, 6, 6), torch.tensor([0.5]), given)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return save(tmp_path / "one.safetensors", random_tensors(flux1_shapes()))


@pytest.fixture
def second(tmp_path: Path) -> Path:
    return save(tmp_path / "two.safetensors", random_tensors(flux1_shapes(), spread=0.04))


@pytest.fixture
def third(tmp_path: Path) -> Path:
    return save(tmp_path / "three.safetensors", random_tensors(flux1_shapes(), spread=0.03))


@pytest.fixture
def nbytes(path: Path) -> int:
    """Of one of these models in float32."""
    return get(Residency(CPU, "auto", 0), path).model.nbytes


def test_two_models_that_fit_both_stay(path: Path, second: Path, nbytes: int) -> None:
    residency = Residency(CPU, "auto", 2 * nbytes)
    one, two = get(residency, path).model, get(residency, second).model
    assert get(residency, path).model is one
    assert get(residency, second).model is two
    assert residency.nbytes == 2 * nbytes


def test_the_stalest_goes_when_a_third_needs_room(path: Path, second: Path, third: Path, nbytes: int) -> None:
    residency = Residency(CPU, "auto", 2 * nbytes)
    for wanted in (path, second, path, third):
        get(residency, wanted)
    assert names(residency) == ["one.safetensors", "three.safetensors"]


def test_one_that_had_to_go_comes_back_with_the_same_numbers(path: Path, second: Path, nbytes: int) -> None:
    residency = Residency(CPU, "auto", nbytes)
    before = answer(get(residency, path).model)
    assert not torch.equal(answer(get(residency, second).model), before)
    loan = get(residency, path)
    assert loan.seconds_loading > 0
    assert torch.equal(answer(loan.model), before)
    assert names(residency) == ["one.safetensors"]


def cut_short(folder: Path) -> Path:
    whole = save(folder / "cut.safetensors", random_tensors(flux1_shapes()))
    cut = folder / "shorter.safetensors"
    cut.write_bytes(whole.read_bytes()[:-100])
    return cut


def without_a_key(folder: Path) -> Path:
    tensors = random_tensors(flux1_shapes())
    del tensors["img_in.bias"]
    return save(folder / "incomplete.safetensors", tensors)


def of_another_kind(folder: Path) -> Path:
    return write(folder / "vae.safetensors", describe({"decoder.conv_in.weight": (8, 8)}))


def of_impossible_width(folder: Path) -> Path:
    norm: dict[str, tuple[int, ...]] = {"double_blocks.0.img_attn.norm.query_norm.scale": (64,)}
    return write(folder / "narrow.safetensors", describe(flux1_shapes() | norm))


@pytest.mark.parametrize("bad", [without_a_key, of_another_kind, of_impossible_width])
def test_a_file_that_cannot_become_a_model_costs_no_resident_its_place(
    bad: Callable[[Path], Path], path: Path, nbytes: int, tmp_path: Path
) -> None:
    residency = Residency(CPU, "auto", nbytes)
    model = get(residency, path).model
    broken = bad(tmp_path)
    with pytest.raises((CheckpointError, UnsupportedModelError)):
        get(residency, broken)
    assert get(residency, path).model is model


def test_nor_does_one_that_is_cut_short(path: Path, nbytes: int, tmp_path: Path) -> None:
    residency = Residency(CPU, "auto", nbytes)
    model = get(residency, path).model
    asked = ModelRef(name="cut", size=path.stat().st_size - 100, digest=read_header(path).digest)
    with pytest.raises(CheckpointError):
        residency.find(cut_short(tmp_path), asked, ModelSettings())
    assert get(residency, path).model is model


def test_one_file_under_two_names_is_one_model(path: Path, tmp_path: Path) -> None:
    residency = Residency(CPU, "auto", 0)
    model = get(residency, path).model
    for make, name in ((os.symlink, "linked.safetensors"), (os.link, "hard.safetensors")):
        make(path, tmp_path / name)
        loan = get(residency, tmp_path / name)
        assert loan.model is model
        assert loan.seconds_loading == 0
    assert len(residency.describe()) == 1


def test_auto_and_the_dtype_it_means_are_one_model_and_another_dtype_is_another(path: Path) -> None:
    residency = Residency(CPU, "auto", 0)
    model = get(residency, path).model
    assert get(residency, path, "float32").model is model
    assert get(residency, path, "bfloat16").model is not model
    assert len(residency.describe()) == 2


def test_files_of_equal_headers_and_dates_are_two_models(path: Path, second: Path) -> None:
    os.utime(second, ns=(path.stat().st_atime_ns, path.stat().st_mtime_ns))
    assert ref(path, "m") == ref(second, "m")
    residency = Residency(CPU, "auto", 0)
    assert not torch.equal(answer(get(residency, path).model), answer(get(residency, second).model))


def test_a_file_that_was_replaced_is_loaded_again(path: Path, second: Path) -> None:
    residency = Residency(CPU, "auto", 0)
    before = answer(get(residency, path).model)
    second.replace(path)
    assert not torch.equal(answer(get(residency, path).model), before)


def test_a_cancelled_load_leaves_the_others_and_can_be_repeated(path: Path, second: Path) -> None:
    def cancel(done: int, total: int) -> None:
        if done > total // 2:
            raise InterruptedError

    residency = Residency(CPU, "auto", 0)
    get(residency, path)
    with pytest.raises(InterruptedError):
        residency.lend(residency.find(second, ref(second), ModelSettings()), cancel)
    assert names(residency) == ["one.safetensors"]
    get(residency, second)
    assert names(residency) == ["one.safetensors", "two.safetensors"]


def test_what_is_unloaded_frees_its_bytes(path: Path, nbytes: int) -> None:
    residency = Residency(CPU, "auto", 0)
    get(residency, path)
    assert residency.unload(ref(path)) == nbytes
    assert residency.describe() == []
