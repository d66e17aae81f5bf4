"""The LoRA benchmark, on a model of a few megabytes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from outboard.engine.bench import lora
from outboard.engine.bench.weights import file_size, published_shapes
from outboard.engine.models.flux1 import Flux1

SMALL = {**lora.CONFIG, "num_layers": 1, "num_single_layers": 1, "num_attention_heads": 1}


def test_a_change_is_compared_with_a_copy_and_nothing_is_compiled_anew(tmp_path: Path) -> None:
    threads = torch.get_num_threads()
    found = list(lora.rows(tmp_path, config=SMALL, rounds=1))
    assert [row.metric for row in found] == 2 * [
        "strength change",
        "memcpy",
        "change / memcpy",
        "compiled anew",
    ]
    for change, copy, ratio, anew in (found[:4], found[4:]):
        assert ratio.value == pytest.approx(change.value / copy.value)
        assert (ratio.target, ratio.ok) == (1.3, ratio.value <= 1.3)
        assert (anew.value, anew.ok) == (0, True)
    assert list(tmp_path.iterdir()) == []
    assert torch.get_num_threads() == threads


def test_the_real_model_takes_a_gigabyte() -> None:
    assert file_size(published_shapes(Flux1(), lora.CONFIG)) >= 1e9
