from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from outboard.engine.sampling.noise import NoiseSource
from outboard.engine.sampling.seeds import (
    sample_exp_heun_2_x0,
    sample_exp_heun_2_x0_sde,
    sample_seeds_2,
    sample_seeds_3,
)
from outboard.protocol.errors import InvalidRequestError

Solver = Callable[..., Tensor]
STOCHASTIC = pytest.mark.parametrize("solve", [sample_seeds_2, sample_seeds_3, sample_exp_heun_2_x0_sde])


def cosine(x: Tensor, sigma: Tensor) -> Tensor:
    return x.cos()


def two(x: Tensor, sigma: Tensor) -> Tensor:
    return torch.full_like(x, 2.0)


@pytest.mark.parametrize(
    ("solve", "least"),
    [
        (partial(sample_seeds_2, eta=0.0), 1.7),
        (partial(sample_seeds_2, eta=0.0, solver_type="phi_2", r=0.7), 1.7),
        (sample_exp_heun_2_x0, 1.7),
        (partial(sample_seeds_3, eta=0.0), 2.5),
    ],
)
def test_without_noise_its_order_is_its_number_of_stages(
    solve: Solver, least: float, order: Callable[..., float]
) -> None:
    assert order(solve) > least


@STOCHASTIC
def test_it_keeps_the_noise_level_of_the_flow(solve: Solver, arguments: dict[str, Any]) -> None:
    noise = torch.randn(1, 1, 256, 256, generator=torch.Generator().manual_seed(1))
    given = arguments | {"noise": NoiseSource(5, noise)}
    x = solve(two, 0.9 * noise + 0.1 * 2.0, torch.tensor([0.9, 0.7, 0.4]), **given)
    assert float(x.mean()) == pytest.approx(0.6 * 2.0, abs=0.02)
    assert float(x.std()) == pytest.approx(0.4, abs=0.02)


@STOCHASTIC
def test_no_s_noise_draws_none(solve: Solver, arguments: dict[str, Any]) -> None:
    x, sigmas = torch.randn(1, 2, 3, 3), torch.tensor([0.9, 0.4, 0.0])
    one, other = (
        solve(cosine, x, sigmas, s_noise=0.0, **arguments | {"noise": NoiseSource(seed, x)})
        for seed in (1, 2)
    )
    assert torch.equal(one, other)


def test_exponential_heun_is_a_seeds_2(arguments: dict[str, Any]) -> None:
    x, sigmas = torch.randn(1, 2, 3, 3), torch.tensor([0.9, 0.4, 0.0])
    ours = sample_exp_heun_2_x0(cosine, x, sigmas, **arguments)
    seeds = sample_seeds_2(cosine, x, sigmas, eta=0.0, r=1.0, solver_type="phi_2", **arguments)
    assert torch.equal(ours, seeds)


def test_an_unknown_solver_type_is_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequestError, match="phi_3"):
        sample_seeds_2(cosine, torch.ones(1), torch.tensor([1.0, 0.5]), solver_type="phi_3", **arguments)
