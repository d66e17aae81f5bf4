from __future__ import annotations

import json
from collections.abc import Callable
from math import isfinite
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from cache.networks import ALL, network
from models.files import TINY, file_shapes, random_tensors, save
from outboard.engine.bench import cache as bench
from outboard.engine.bench import stranger
from outboard.engine.cache import tuning
from outboard.engine.cache.controller import installed
from outboard.engine.cache.settings import Settings
from outboard.engine.cache.yaml_form import read_file
from outboard.engine.cli import main
from outboard.engine.commands import tune
from outboard.engine.models.flux1 import Flux1
from outboard.protocol.errors import UnsupportedRequestError

TRIED = [
    Settings(Fn_compute_blocks=1, scm_preset=name, steps_computation_policy="static", taylorseer_order=1)
    for name in ("medium", "ultra")
]


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two settings and no finer ones, ten pictures."""
    monkeypatch.setattr(tuning, "coarse", lambda _: TRIED)
    monkeypatch.setattr(tuning, "finer", lambda _: [])
    monkeypatch.setattr(tune, "PICTURES", 10)


def settings_in(path: Path) -> Settings:
    choice = read_file(path)
    assert choice is not None
    return choice.settings("flux1", 8)


def interrupt_after(count: int, patch: pytest.MonkeyPatch) -> None:
    """Ctrl-C during the cached run after `count`."""
    original: Callable[..., Any] = bench.cached
    seen: list[int] = []

    def cached(*given: Any) -> Any:
        seen.append(1)
        if len(seen) > count:
            raise KeyboardInterrupt
        return original(*given)

    patch.setattr(bench, "cached", cached)


def test_the_demo_is_tuned_in_json_and_the_file_can_be_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "tuned.yaml"
    assert main(["tune", "--model", "demo", "--steps", "12", "--out", str(out), "--json"]) == 0
    records = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {record["settings"]["scm_preset"] for record in records} <= {"medium", "ultra"}
    for record in records:
        assert record["speedup"] > 0 and isfinite(record["psnr"]) and 0 < record["blocks"] < 1
        assert 0 <= record["accuracy"] <= 100
        assert record["conditioning"].startswith("digits (10 pictures")
    assert settings_in(out) in TRIED
    assert "uncached picture" in out.read_text(encoding="utf-8")


def test_fewer_blocks_are_further_from_the_original() -> None:
    subject = bench.digits_subject(10)
    medium, ultra = list(tune._measured(subject, 12, 600))
    assert medium.blocks > ultra.blocks and medium.psnr > ultra.psnr
    assert installed(subject.model) is None


def test_a_model_file_is_tuned_on_random_text_and_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "tiny.safetensors"
    save(file, random_tensors(file_shapes(Flux1(), TINY)))
    assert main(["tune", "--model", str(file), "--steps", "8", "--size", "4", "--device", "cpu"]) == 0
    first, second, *points = capsys.readouterr().out.splitlines()
    assert "random text" in first and "2 settings measured" in first
    assert "uncached latent" in second
    assert points and all("dB" in line for line in points)
    assert "read" not in points[0]


@pytest.mark.parametrize("family", ALL)
def test_random_text_fits_every_family(family: str) -> None:
    model = network(family)
    subject = stranger.stranger(model, 4, 1.0, None)
    assert subject.run(2).shape == subject.noise.shape
    assert torch.equal(stranger.random_text(model)["context"], subject.conditioning["context"])


def test_a_model_that_needs_a_picture_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model = network("wan")
    monkeypatch.setattr(model, "predict", lambda x, *_: x[:, :1])
    with pytest.raises(UnsupportedRequestError, match="a picture to start from"):
        stranger.stranger(model, 4, 1.0, None)


def test_a_conditioning_file_takes_the_place_of_random_text(tmp_path: Path) -> None:
    path = tmp_path / "text.safetensors"
    context = torch.randn(2, 3, 24)
    save_file({"context": context}, path)
    subject = stranger.stranger(network("wan"), 4, 1.0, stranger.conditioning_of(path))
    assert torch.equal(subject.conditioning["context"], context)
    assert len(subject.noise) == 2


def test_every_band_has_a_file_of_its_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "tuned.yaml"
    status = main(["tune", "--model", "demo", "--family-bands", "--out", str(out)])
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"tuned-{n}.yaml" for n in (16, 24, 8)]
    assert status == 1  # four steps have no mask, and nothing else was tried
    assert "4 steps: no setting that was measured spared a block" in capsys.readouterr().out


def test_ctrl_c_writes_what_was_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "tuned.yaml"
    interrupt_after(1, monkeypatch)
    assert main(["tune", "--model", "demo", "--steps", "8", "--out", str(out)]) == 130
    assert settings_in(out) == TRIED[0]
    assert "1 settings measured" in out.read_text(encoding="utf-8")


def test_ctrl_c_before_anything_was_found_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    interrupt_after(0, monkeypatch)
    out = tmp_path / "tuned.yaml"
    assert main(["tune", "--model", "demo", "--steps", "8", "--out", str(out)]) == 130
    assert not out.exists()
    assert "nothing is written" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        (["--steps", "1"], "--steps starts at 2"),
        (["--seconds", "nan"], "--seconds"),
        (["--size", "8"], "has its own"),
        (["--out", "nowhere/at/all.yaml"], "folder is not there"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_measured(
    given: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["tune", "--model", "demo", *given]) == 1
    assert complaint in capsys.readouterr().err


def test_steps_and_bands_exclude_each_other() -> None:
    with pytest.raises(SystemExit) as exit_:
        main(["tune", "--model", "demo", "--steps", "8", "--family-bands"])
    assert exit_.value.code == 2


def test_a_conditioning_that_is_none_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = tmp_path / "text.safetensors"
    text.write_bytes(b"no")
    assert main(["tune", "--model", "some.safetensors", "--conditioning", str(text)]) == 1
    assert "no readable conditioning" in capsys.readouterr().err
