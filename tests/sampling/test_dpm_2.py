from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from outboard.engine.sampling.dpm_2 import sample_dpm_2, sample_dpm_2_ancestral
from outboard.engine.sampling.noise import NoiseSource


def cosine(x: Tensor, sigma: Tensor) -> Tensor:
    return x.cos()


def two(x: Tensor, sigma: Tensor) -> Tensor:
    return torch.full_like(x, 2.0)


def test_dpm_2_is_second_order(order: Callable[..., float]) -> None:
    assert order(sample_dpm_2) > 1.7
    assert order(partial(sample_dpm_2_ancestral, eta=0.0)) > 1.7


def test_the_second_call_is_in_the_geometric_middle(arguments: dict[str, Any]) -> None:
    seen: list[float] = []

    def model(x: Tensor, sigma: Tensor) -> Tensor:
        seen.append(float(sigma[0]))
        return cosine(x, sigma)

    sample_dpm_2(model, torch.ones(1, 1, 2, 2), torch.tensor([0.9, 0.4, 0.0]), **arguments)
    assert seen == pytest.approx([0.9, 0.6, 0.4])


def test_ancestral_without_eta_is_the_plain_one(arguments: dict[str, Any]) -> None:
    x, sigmas = torch.randn(1, 2, 3, 3), torch.tensor([0.9, 0.77, 0.31, 0.0])
    ours = sample_dpm_2_ancestral(cosine, x, sigmas, eta=0.0, **arguments)
    assert torch.allclose(ours, sample_dpm_2(cosine, x, sigmas, **arguments), atol=1e-6)


def test_ancestral_keeps_the_noise_level_of_the_flow(arguments: dict[str, Any]) -> None:
    noise = torch.randn(1, 1, 256, 256, generator=torch.Generator().manual_seed(1))
    given = arguments | {"noise": NoiseSource(5, noise)}
    x = sample_dpm_2_ancestral(two, 0.9 * noise + 0.1 * 2.0, torch.tensor([0.9, 0.4]), **given)
    assert float(x.mean()) == pytest.approx(0.6 * 2.0, abs=0.02)
    assert float(x.std()) == pytest.approx(0.4, abs=0.02)
