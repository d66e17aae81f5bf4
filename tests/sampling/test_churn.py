from __future__ import annotations

import torch

from outboard.engine.sampling.churn import Churn
from outboard.engine.sampling.noise import NoiseSource

X = torch.zeros(1, 1, 64, 64)
SIGMA = torch.tensor(0.5)


def test_no_churn_changes_nothing() -> None:
    x, sigma = Churn(0.0, 0.0, 9.0, 1.0).apply(X, SIGMA, 4, NoiseSource(1, X))
    assert x is X
    assert sigma is SIGMA


def test_churn_raises_the_noise_level_it_reports() -> None:
    x, sigma = Churn(1.0, 0.0, 9.0, 1.0).apply(X, SIGMA, 4, NoiseSource(1, X))
    assert float(sigma) == 0.625
    assert abs(float(x.std()) - (0.625**2 - 0.5**2) ** 0.5) < 0.02


def test_churn_never_raises_a_level_by_more_than_the_square_root_of_two() -> None:
    _, sigma = Churn(100.0, 0.0, 9.0, 1.0).apply(X, SIGMA, 4, NoiseSource(1, X))
    assert abs(float(sigma) - 0.5 * 2**0.5) < 1e-6


def test_churn_keeps_within_its_sigmas() -> None:
    for low, high in ((0.6, 9.0), (0.0, 0.4)):
        assert Churn(1.0, low, high, 1.0).apply(X, SIGMA, 4, NoiseSource(1, X))[0] is X


def test_a_generator_that_always_moves_on_does_so_outside_the_sigmas_too() -> None:
    drawn = []
    for always in (False, True):
        source = NoiseSource(1, X)
        Churn(1.0, 0.6, 0.9, 1.0, draws_always=always).apply(X, SIGMA, 4, source)
        drawn.append(source.churn())
    assert not torch.equal(*drawn)
