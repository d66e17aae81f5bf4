from __future__ import annotations

import pytest
import torch
from torch import Tensor

from outboard.engine.demo.handwriting import Handwriting, real_digits
from outboard.engine.demo.judge import read, read_all


@pytest.fixture(scope="module")
def held_out() -> Handwriting:
    return real_digits(held_out=True)


def share_read_right(pictures: Tensor, digits: Tensor) -> float:
    readings = read_all(pictures)
    return sum(r.is_digit(d) for r, d in zip(readings, digits.tolist(), strict=True)) / len(readings)


def test_judge_reads_digits_it_never_saw(held_out: Handwriting) -> None:
    assert share_read_right(held_out.pictures, held_out.digits) >= 0.98


def test_judge_reads_noisy_and_faded_digits(held_out: Handwriting) -> None:
    noise = torch.randn(held_out.pictures.shape, generator=torch.Generator().manual_seed(0))
    spoiled = (held_out.pictures * 0.8 + noise * 0.1).clamp(0, 1)
    assert share_read_right(spoiled, held_out.digits) >= 0.96


@pytest.mark.parametrize("level", [0.0, 0.5, 1.0])
def test_judge_reads_nothing_in_a_plain_picture(level: float) -> None:
    assert read(torch.full((32, 32), level)).confidence < 0.5


def test_judge_reads_nothing_in_noise() -> None:
    noise = torch.rand(50, 32, 32, generator=torch.Generator().manual_seed(0))
    assert max(reading.confidence for reading in read_all(noise)) < 0.5


def test_judge_reads_nothing_in_digits_with_rows_of_tiles_swapped(held_out: Handwriting) -> None:
    swapped = held_out.pictures.reshape(-1, 4, 8, 32)[:, [2, 0, 3, 1]].flatten(1, 2)
    assert share_read_right(swapped, held_out.digits) < 0.3
