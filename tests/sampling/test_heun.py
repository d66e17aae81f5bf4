from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from outboard.engine.sampling.heun import sample_heun


def test_heun_is_second_order(order: Callable[..., float]) -> None:
    assert 1.8 < order(sample_heun) < 2.3


def test_heun_calls_the_model_twice_but_once_to_reach_zero(arguments: dict[str, Any]) -> None:
    called: list[float] = []

    def model(x: Tensor, sigma: Tensor) -> Tensor:
        called.append(float(sigma[0]))
        return x / 2

    sample_heun(model, torch.ones(1, 1, 2, 2), torch.tensor([1.0, 0.5, 0.0]), **arguments)
    assert called == [1.0, 0.5, 0.5]


def test_churn_reaches_the_model(arguments: dict[str, Any]) -> None:
    called: list[float] = []

    def model(x: Tensor, sigma: Tensor) -> Tensor:
        called.append(float(sigma[0]))
        return x / 2

    sample_heun(model, torch.ones(1, 1, 2, 2), torch.tensor([0.5, 0.0]), s_churn=0.2, **arguments)
    assert called == [0.6000000238418579]
