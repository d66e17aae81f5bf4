from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from PIL import Image

from outboard.engine.cli import main
from outboard.engine.demo import album
from outboard.engine.demo.draw import draw
from outboard.protocol.errors import InvalidRequestError


@pytest.fixture
def runtime(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A runtime folder of this test's own, so that it starts and ends its own engine."""
    folder = tmp_path_factory.mktemp("run")
    monkeypatch.setenv("OUTBOARD_RUNTIME_DIR", str(folder))
    monkeypatch.setenv("OUTBOARD_THREADS", "1")
    yield folder
    assert list(folder.glob("*.json")) == [], "the engine is still registered"


def test_the_engine_draws_the_digit_that_was_asked_for(
    runtime: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    picture = tmp_path / "seven.png"
    assert main(["demo", "7", "--seed", "3", "--steps", "12", "--out", str(picture), "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert (record["asked"], record["read_as"], record["seed"], record["steps"]) == (7, 7, 3, 12)
    assert record["path"] == "whole_loop"
    assert record["confidence"] > 0.5
    assert record["seconds"] >= record["seconds_loading"]
    expected = tmp_path / "expected.png"
    album.save([draw(7, 3, steps=12)], expected)
    assert (pixels(picture) - pixels(expected)).abs().max() <= 1, "the wire changes the picture"


def test_the_grid_draws_every_digit(
    runtime: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sheet = tmp_path / "grid.png"
    assert main(["demo", "--grid", "--out", str(sheet)]) == 0
    *lines, summary = capsys.readouterr().out.splitlines()
    assert len(lines) == 30
    assert int(summary.split()[0]) >= 29
    assert pixels(sheet).shape == (10 * 256, 3 * 256)


@pytest.mark.parametrize("arguments", [[], ["7", "--grid"], ["7", "--steps", "0"], ["7", "--seed", "-1"]])
def test_contradictory_wishes_are_refused_before_an_engine_starts(
    arguments: list[str], runtime: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["demo", *arguments]) == 1
    assert "outboard demo: " in capsys.readouterr().err
    assert list(runtime.iterdir()) == []


def test_a_sheet_is_filled_row_by_row(tmp_path: Path) -> None:
    pictures = [torch.full((32, 32), value) for value in (0.0, 0.2, 0.4, 0.6)]
    album.save(pictures, tmp_path / "sheet.png", columns=2)
    sheet = pixels(tmp_path / "sheet.png")
    assert sheet.shape == (512, 512)
    assert sheet[::256, ::256].tolist() == [[0, 51], [102, 153]]


@pytest.mark.parametrize("name", ["sheet.jpg", "absent/sheet.png"])
def test_a_place_where_no_picture_can_go_is_an_error(name: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequestError, match="sheet"):
        album.save([torch.zeros(32, 32)], tmp_path / name)


def pixels(path: Path) -> torch.Tensor:
    """A grey PNG's pixels, int32 [H, W]."""
    with Image.open(path) as image:
        flat = torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8)
        return flat.reshape(image.height, image.width).int()
