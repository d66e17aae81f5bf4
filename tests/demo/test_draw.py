from __future__ import annotations

import pytest
import torch

from outboard.engine.demo.assets import MODEL
from outboard.engine.demo.draw import digit_sigmas, draw
from outboard.engine.demo.judge import read
from outboard.engine.models.loader import load


def test_guided_digits_are_drawn_clearly() -> None:
    readings = [read(draw(digit, seed=digit, steps=8, cfg=4.0)) for digit in range(10)]
    assert all(reading.is_digit(digit) for digit, reading in enumerate(readings))


def test_unguided_digits_are_told_apart() -> None:
    readings = [read(draw(digit, seed=digit, steps=8, cfg=1.0)) for digit in range(10)]
    assert sum(reading.digit == digit for digit, reading in enumerate(readings)) >= 9
    assert sum(reading.is_digit(digit) for digit, reading in enumerate(readings)) >= 8


def test_guidance_makes_digits_clearer() -> None:
    plain, guided = (read(draw(3, seed=1, steps=8, cfg=cfg)).confidence for cfg in (1.0, 4.0))
    assert guided > plain + 0.1


def test_same_seed_same_picture_other_seed_other_picture() -> None:
    first, again, other = (draw(5, seed, steps=4) for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert (first - other).abs().mean() > 0.01


def test_bf16_draws_nearly_the_same_picture() -> None:
    model = load(MODEL, dtype=torch.bfloat16, device=torch.device("cpu"))
    picture = draw(7, seed=3, steps=8, model=model)
    assert read(picture).is_digit(7)
    assert (picture - draw(7, seed=3, steps=8)).abs().mean() < 0.02


@pytest.mark.parametrize("sampler", ["dpmpp_2m", "uni_pc", "euler_ancestral"])
def test_other_samplers_draw_it_too(sampler: str) -> None:
    assert read(draw(4, seed=0, steps=12, sampler=sampler)).is_digit(4)


def test_sigmas_fall_evenly_from_one_to_zero() -> None:
    torch.testing.assert_close(digit_sigmas(4), torch.tensor([1.0, 0.75, 0.5, 0.25, 0.0]))
