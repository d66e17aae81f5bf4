from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from outboard.engine.sampling.dpm_solver import Departure, sigma_of, time_of, time_span


def exponential(x: Tensor, sigma: Tensor) -> Tensor:
    return x * (1 - sigma.reshape(-1, 1, 1, 1))


def departure(to: float) -> Departure:
    x = torch.full((1, 1, 2, 2), math.exp(0.9), dtype=torch.float64)
    start, end = (time_of(torch.tensor(sigma, dtype=torch.float64)) for sigma in (0.9, to))
    return Departure(exponential, x, start, end)


@pytest.mark.parametrize(("step", "order"), [("first", 1), ("second", 2), ("third", 3)])
def test_a_steps_error_falls_with_its_order(step: str, order: int) -> None:
    errors = [abs(float(getattr(departure(to), step)().mean()) - math.exp(to)) for to in (0.7, 0.8)]
    assert math.log2(errors[0] / errors[1]) == pytest.approx(order + 1, abs=0.4)


def test_steps_share_the_calls_they_have_in_common() -> None:
    calls = 0

    def model(x: Tensor, sigma: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        return x / 2

    start = time_of(torch.tensor([0.9, 0.7]))
    made = Departure(model, torch.ones(1, 1, 2, 2), *start)
    made.second(1 / 3)
    made.third()
    assert calls == 3
    assert torch.allclose(made.x0, torch.full((1, 1, 2, 2), 0.5), atol=1e-6)


def test_a_schedule_spans_to_its_last_sigma_above_0() -> None:
    for sigmas in ([0.9, 0.5, 0.2, 0.0], [0.9, 0.2]):
        start, end = time_span(torch.tensor(sigmas))
        assert (float(sigma_of(start)), float(sigma_of(end))) == pytest.approx((0.9, 0.2))
