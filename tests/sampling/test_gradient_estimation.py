from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from outboard.engine.sampling.euler import sample_euler
from outboard.engine.sampling.gradient_estimation import sample_gradient_estimation


def cosine(x: Tensor, sigma: Tensor) -> Tensor:
    return x.cos()


def test_gamma_1_is_euler(arguments: dict[str, Any]) -> None:
    x, sigmas = torch.randn(1, 2, 3, 3), torch.tensor([0.9, 0.6, 0.3, 0.0])
    ours = sample_gradient_estimation(cosine, x, sigmas, ge_gamma=1.0, **arguments)
    assert torch.allclose(ours, sample_euler(cosine, x, sigmas, **arguments), atol=1e-6)


def test_gamma_one_and_a_half_is_adams_bashforth_2(order: Callable[..., float]) -> None:
    assert order(partial(sample_gradient_estimation, ge_gamma=1.5)) > 1.7
