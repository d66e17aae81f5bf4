"""What a resident model puts on and takes off, and how often it reads a file for that."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import adapted
from outboard.engine.demo.draw import shipped_model
from outboard.engine.lora.file import read_lora
from outboard.engine.rank import wardrobe
from outboard.engine.rank.adapters import FileEntry
from outboard.engine.rank.wardrobe import Wardrobe


def test_another_strength_rewrites_the_weights_and_reads_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "lora.safetensors"
    file = adapted.file(path, seed=1)
    reads: list[Path] = []

    def read(path: Path, model: Any) -> Any:
        reads.append(path)
        return read_lora(path, model)

    monkeypatch.setattr(wardrobe, "read_lora", read)
    model = shipped_model()
    mine = Wardrobe(model, budget=1 << 30)
    worn: dict[float, dict[str, Any]] = {}
    for strength in (0.8, 0.9, 0.8):
        entry = FileEntry(str(path), file.model_copy(update={"strength": strength}))
        assert mine.wear([entry]).weights == len(adapted.matrices(1))
        changed = {name: tensor.clone() for name, tensor in model.module.named_parameters()}
        if strength in worn:
            assert all(tensor.equal(worn[strength][name]) for name, tensor in changed.items())
        worn[strength] = changed
    assert any(not tensor.equal(worn[0.9][name]) for name, tensor in worn[0.8].items())
    assert reads == [path]
