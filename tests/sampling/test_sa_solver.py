from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from outboard.engine.sampling.noise import NoiseSource
from outboard.engine.sampling.sa_solver import exponential_weights, sample_sa_solver, sample_sa_solver_pece
from outboard.protocol.errors import UnsupportedRequestError

Solver = Callable[..., Tensor]
BOTH = pytest.mark.parametrize("solve", [sample_sa_solver, sample_sa_solver_pece])


def cosine(x: Tensor, sigma: Tensor) -> Tensor:
    return x.cos()


def two(x: Tensor, sigma: Tensor) -> Tensor:
    return torch.full_like(x, 2.0)


@BOTH
@pytest.mark.parametrize("simple", [False, True])
def test_its_order_grows_with_the_predictors(
    solve: Solver, simple: bool, order: Callable[..., float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("outboard.engine.sampling.sa_solver._NOISY", (1.0, 1.0))
    first = partial(solve, predictor_order=1, corrector_order=0)
    second = partial(solve, predictor_order=2, corrector_order=2, simple_order_2=simple)
    assert order(first) < 1.4
    assert order(second) > 1.7


@BOTH
def test_it_keeps_the_noise_level_of_the_flow(solve: Solver, arguments: dict[str, Any]) -> None:
    noise = torch.randn(1, 1, 256, 256, generator=torch.Generator().manual_seed(1))
    given = arguments | {"noise": NoiseSource(5, noise)}
    x = solve(two, 0.9 * noise + 0.1 * 2.0, torch.tensor([0.9, 0.7, 0.4]), **given)
    assert float(x.mean()) == pytest.approx(0.6 * 2.0, abs=0.02)
    assert float(x.std()) == pytest.approx(0.4, abs=0.02)


def test_outside_the_middle_of_the_schedule_it_draws_no_noise(arguments: dict[str, Any]) -> None:
    x = torch.randn(1, 2, 3, 3)
    for sigmas in (torch.tensor([0.99, 0.95, 0.85]), torch.tensor([0.19, 0.1, 0.05, 0.0])):
        one, other = (
            sample_sa_solver(cosine, x, sigmas, **arguments | {"noise": NoiseSource(seed, x)})
            for seed in (1, 2)
        )
        assert torch.equal(one, other)


def test_pece_calls_twice_a_step_but_the_first(arguments: dict[str, Any]) -> None:
    seen: list[float] = []

    def model(x: Tensor, sigma: Tensor) -> Tensor:
        seen.append(round(float(sigma[0]), 3))
        return cosine(x, sigma)

    sample_sa_solver_pece(model, torch.ones(1, 1, 2, 2), torch.tensor([0.9, 0.6, 0.3, 0.0]), **arguments)
    assert seen == [0.9, 0.6, 0.6, 0.3, 0.3]


@pytest.mark.parametrize("rate", [1.0, 2.0])
def test_the_weights_integrate_polynomials_under_the_exponential(rate: float) -> None:
    weights = exponential_weights([0.0, -0.7, -1.1], 0.7, rate)
    assert sum(weights) == pytest.approx(1 - math.exp(-rate * 0.7))
    points = torch.linspace(-0.7, 0, 100_001, dtype=torch.float64)
    exact = float(torch.trapezoid(rate * (rate * points).exp() * points**2, points))
    assert weights[1] * 0.7**2 + weights[2] * 1.1**2 == pytest.approx(exact, rel=1e-6)


@pytest.mark.parametrize("orders", [(0, 4), (3, -1)])
def test_orders_it_has_not_are_refused(orders: tuple[int, int], arguments: dict[str, Any]) -> None:
    options: dict[str, Any] = dict(zip(("predictor_order", "corrector_order"), orders, strict=True))
    with pytest.raises(UnsupportedRequestError, match="orders"):
        sample_sa_solver(cosine, torch.ones(1), torch.tensor([1.0, 0.5]), **options, **arguments)
