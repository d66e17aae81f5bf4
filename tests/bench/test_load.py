"""The load benchmark, on a file of a few megabytes."""

from __future__ import annotations

from pathlib import Path

import pytest

from models.files import TINY
from outboard.engine.bench import load, memory
from outboard.engine.bench.weights import file_size, published_shapes, write_file
from outboard.engine.models.flux1 import Flux1
from outboard.engine.models.header import read_header
from outboard.protocol.errors import OutOfMemoryError


def test_both_read_the_file_and_it_is_gone_afterwards(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OUTBOARD_RUNTIME_DIR", str(tmp_path_factory.mktemp("o")))
    rows = {row.metric: row for row in load.rows(tmp_path, config=TINY, rounds=1)}
    assert list(rows) == ["engine", "safetensors", "engine / safetensors", "peak memory / file"]
    ratio = rows["engine / safetensors"]
    assert ratio.value == pytest.approx(rows["engine"].value / rows["safetensors"].value)
    assert (ratio.target, ratio.ok) == (1.15, ratio.value <= 1.15)
    # Everything else a load takes weighs more than such a file; a real one's share must be near one.
    assert rows["peak memory / file"].value > 0.5
    assert list(tmp_path.iterdir()) == []


def test_the_real_file_is_as_large_as_the_target_says() -> None:
    assert file_size(published_shapes(Flux1(), load.CONFIG)) >= 4e9


def test_a_file_is_written_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outboard.engine.bench.weights.BLOCK", 1 << 12)
    shapes = published_shapes(Flux1(), TINY)
    write_file(tmp_path / "m.safetensors", shapes)
    header = read_header(tmp_path / "m.safetensors")
    assert {name: info.shape for name, info in header.tensors.items()} == shapes
    assert header.size - header.data_start == file_size(shapes)
    assert set((tmp_path / "m.safetensors").read_bytes()[-4096:]) > {0}


def test_without_room_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "SPARE", 1 << 60)
    with pytest.raises(OutOfMemoryError, match=r"needs .* GB in"):
        next(load.rows(tmp_path, config=TINY))
    assert list(tmp_path.iterdir()) == []


def test_memory_of_another_process_is_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = iter([1000, 5000, *[3000] * 10_000])
    monkeypatch.setattr(memory.HostMemory, "_held", lambda _: next(sizes))
    with memory.HostMemory(1) as watched:
        watched._stop.wait(0.05)
    assert watched.growth == 4000
