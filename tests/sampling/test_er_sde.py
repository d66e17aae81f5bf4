from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from outboard.engine.sampling.er_sde import sample_er_sde
from outboard.engine.sampling.noise import NoiseSource


def two(x: Tensor, sigma: Tensor) -> Tensor:
    return torch.full_like(x, 2.0)


def wave(x: Tensor, sigma: Tensor) -> Tensor:
    return torch.full_like(x, math.cos(3 * float(sigma[0])))


def test_every_stage_makes_it_less_wrong(arguments: dict[str, Any]) -> None:
    x = torch.zeros(1, 1, 2, 2)

    def ended(steps: int, stage: int) -> float:
        sigmas = torch.linspace(0.9, 0.2, steps + 1)
        return float(sample_er_sde(wave, x, sigmas, s_noise=0.0, max_stage=stage, **arguments).mean())

    exact = ended(600, 3)
    first, second, third = (abs(ended(12, stage) - exact) for stage in (1, 2, 3))
    assert third < second < first / 2


def test_it_keeps_the_noise_level_of_the_flow(arguments: dict[str, Any]) -> None:
    noise = torch.randn(1, 1, 256, 256, generator=torch.Generator().manual_seed(1))
    given = arguments | {"noise": NoiseSource(5, noise)}
    x = sample_er_sde(two, 0.9 * noise + 0.1 * 2.0, torch.tensor([0.9, 0.7, 0.4]), **given)
    assert float(x.mean()) == pytest.approx(0.6 * 2.0, abs=0.02)
    assert float(x.std()) == pytest.approx(0.4, abs=0.02)
