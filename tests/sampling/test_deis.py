from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from outboard.engine.sampling.deis import sample_deis
from outboard.engine.sampling.euler import sample_euler
from outboard.protocol.errors import UnsupportedRequestError


def halve(x: Tensor, sigma: Tensor) -> Tensor:
    return x / 2


def test_deis_converges_faster_than_euler(order: Callable[..., float]) -> None:
    assert order(partial(sample_deis, max_order=2)) > 1.7


def test_a_constant_noise_prediction_is_integrated_exactly(arguments: dict[str, Any]) -> None:
    def model(x: Tensor, sigma: Tensor) -> Tensor:
        return x - 3 * sigma.reshape(-1, 1, 1, 1)

    x, sigmas = torch.zeros(1, 1, 2, 2), torch.tensor([0.9, 0.7, 0.4, 0.2])
    for order in (1, 2, 3, 4):
        ours = sample_deis(model, x, sigmas, max_order=order, **arguments)
        assert torch.allclose(ours, torch.full_like(x, 3 * (0.2 - 0.9)), atol=1e-3)


def test_order_1_is_euler(arguments: dict[str, Any]) -> None:
    x, sigmas = torch.randn(1, 2, 3, 3), torch.tensor([0.9, 0.5, 0.0])
    ours = sample_deis(halve, x, sigmas, max_order=1, **arguments)
    assert torch.allclose(ours, sample_euler(halve, x, sigmas, **arguments))


def test_an_order_it_has_not_is_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedRequestError, match="not 5"):
        sample_deis(halve, torch.ones(1, 1, 2, 2), torch.tensor([1.0, 0.5]), max_order=5, **arguments)
