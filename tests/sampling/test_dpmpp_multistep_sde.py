from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from outboard.engine.sampling.brownian import BrownianNoise
from outboard.engine.sampling.dpmpp_multistep_sde import (
    sample_dpmpp_2m_sde,
    sample_dpmpp_2m_sde_heun,
    sample_dpmpp_3m_sde,
)
from outboard.protocol.errors import InvalidRequestError

Solver = Callable[..., Tensor]
ALL = pytest.mark.parametrize("solve", [sample_dpmpp_2m_sde, sample_dpmpp_2m_sde_heun, sample_dpmpp_3m_sde])


def cosine(x: Tensor, sigma: Tensor) -> Tensor:
    return x.cos()


def two(x: Tensor, sigma: Tensor) -> Tensor:
    return torch.full_like(x, 2.0)


@ALL
def test_without_noise_it_is_at_least_second_order(solve: Solver, order: Callable[..., float]) -> None:
    assert order(partial(solve, eta=0.0)) > 1.5


@ALL
def test_it_keeps_the_noise_level_of_the_flow(solve: Solver, arguments: dict[str, Any]) -> None:
    noise = torch.randn(1, 1, 256, 256, generator=torch.Generator().manual_seed(1))
    sigmas = torch.tensor([0.9, 0.8, 0.6, 0.4])
    given = arguments | {"noise": BrownianNoise(5, noise, sigmas)}
    x = solve(two, 0.9 * noise + 0.1 * 2.0, sigmas, **given)
    assert float(x.mean()) == pytest.approx(0.6 * 2.0, abs=0.02)
    assert float(x.std()) == pytest.approx(0.4, abs=0.02)


def test_the_heun_one_differs_in_its_default_only(arguments: dict[str, Any]) -> None:
    x, sigmas = torch.randn(1, 2, 3, 3), torch.tensor([0.9, 0.6, 0.3, 0.0])
    solve = partial(sample_dpmpp_2m_sde, cosine, x, sigmas, eta=0.0, **arguments)
    heun = sample_dpmpp_2m_sde_heun(cosine, x, sigmas, eta=0.0, **arguments)
    assert torch.equal(heun, solve(solver_type="heun"))
    assert not torch.equal(heun, solve())


def test_an_unknown_solver_type_is_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequestError, match="euler"):
        sample_dpmpp_2m_sde(cosine, torch.ones(1), torch.tensor([1.0, 0.5]), solver_type="euler", **arguments)
