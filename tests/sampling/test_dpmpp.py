from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from outboard.engine.sampling.dpmpp import sample_dpmpp_2m, sample_dpmpp_2s_ancestral
from outboard.engine.sampling.euler import sample_euler


def cosine(x: Tensor, sigma: Tensor) -> Tensor:
    return x.cos()


def test_dpmpp_2m_is_second_order(order: Callable[..., float]) -> None:
    assert order(sample_dpmpp_2m) > 1.7


def test_its_first_step_is_euler(arguments: dict[str, Any]) -> None:
    x, sigmas = torch.randn(1, 2, 3, 3), torch.tensor([0.8, 0.3])
    ours = sample_dpmpp_2m(cosine, x, sigmas, **arguments)
    assert torch.allclose(ours, sample_euler(cosine, x, sigmas, **arguments), atol=1e-6)


def test_2s_without_noise_is_second_order(order: Callable[..., float]) -> None:
    assert order(partial(sample_dpmpp_2s_ancestral, eta=0.0)) > 1.7


def test_2s_takes_its_second_call_just_below_pure_noise(arguments: dict[str, Any]) -> None:
    seen: list[float] = []

    def model(x: Tensor, sigma: Tensor) -> Tensor:
        seen.append(float(sigma[0]))
        return x / 2

    sigmas = torch.tensor([1.0, 0.9, 0.1, 0.0])
    sample_dpmpp_2s_ancestral(model, torch.ones(1, 1, 2, 2), sigmas, eta=0.0, **arguments)
    assert seen == pytest.approx([1.0, 0.9999, 0.9, 0.5, 0.1])
