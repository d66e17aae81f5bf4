from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from outboard.engine.sampling.dpmpp import sample_dpmpp_2m
from outboard.engine.sampling.euler import sample_euler


def cosine(x: Tensor, sigma: Tensor) -> Tensor:
    return x.cos()


def test_dpmpp_2m_is_second_order(order: Callable[..., float]) -> None:
    assert order(sample_dpmpp_2m) > 1.7


def test_its_first_step_is_euler(arguments: dict[str, Any]) -> None:
    x, sigmas = torch.randn(1, 2, 3, 3), torch.tensor([0.8, 0.3])
    ours = sample_dpmpp_2m(cosine, x, sigmas, **arguments)
    assert torch.allclose(ours, sample_euler(cosine, x, sigmas, **arguments), atol=1e-6)
