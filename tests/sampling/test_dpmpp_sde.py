from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from outboard.engine.sampling.brownian import BrownianNoise
from outboard.engine.sampling.dpmpp_sde import sample_dpmpp_sde


def cosine(x: Tensor, sigma: Tensor) -> Tensor:
    return x.cos()


def two(x: Tensor, sigma: Tensor) -> Tensor:
    return torch.full_like(x, 2.0)


def test_without_noise_it_is_second_order(order: Callable[..., float]) -> None:
    assert order(partial(sample_dpmpp_sde, eta=0.0)) > 1.7


def test_it_keeps_the_noise_level_of_the_flow(arguments: dict[str, Any]) -> None:
    noise = torch.randn(1, 1, 256, 256, generator=torch.Generator().manual_seed(1))
    sigmas = torch.tensor([0.9, 0.7, 0.4])
    given = arguments | {"noise": BrownianNoise(5, noise, sigmas)}
    x = sample_dpmpp_sde(two, 0.9 * noise + 0.1 * 2.0, sigmas, **given)
    assert float(x.mean()) == pytest.approx(0.6 * 2.0, abs=0.02)
    assert float(x.std()) == pytest.approx(0.4, abs=0.02)


def test_the_second_call_is_after_r_of_the_step(arguments: dict[str, Any]) -> None:
    seen: list[float] = []

    def model(x: Tensor, sigma: Tensor) -> Tensor:
        seen.append(float(sigma[0]))
        return cosine(x, sigma)

    sigmas = torch.tensor([0.9, 0.1])
    sample_dpmpp_sde(model, torch.ones(1, 1, 2, 2), sigmas, eta=0.0, **arguments)
    assert seen == pytest.approx([0.9, 0.5])
