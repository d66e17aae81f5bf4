from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from outboard.engine.sampling.dpm_fast import sample_dpm_fast
from outboard.engine.sampling.step import Step


def exponential(x: Tensor, sigma: Tensor) -> Tensor:
    return x * (1 - sigma.reshape(-1, 1, 1, 1))


@pytest.mark.parametrize(("calls", "steps"), [(1, 1), (2, 1), (3, 2), (4, 2), (5, 2), (6, 3), (7, 3)])
def test_it_makes_as_many_calls_as_there_are_sigmas_to_start_from(
    calls: int, steps: int, arguments: dict[str, Any]
) -> None:
    seen: list[float] = []
    reported: list[Step] = []

    def model(x: Tensor, sigma: Tensor) -> Tensor:
        seen.append(float(sigma[0]))
        return exponential(x, sigma)

    sigmas = torch.linspace(0.9, 0.2, calls + 1)
    x = torch.full((1, 1, 2, 2), math.exp(0.9))
    x = sample_dpm_fast(model, x, sigmas, **arguments | {"callback": reported.append})
    assert len(seen) == calls
    assert [(step.index, step.total) for step in reported] == [(index, calls) for index in range(steps)]
    if calls > 5:
        assert float(x.mean()) == pytest.approx(math.exp(0.2), rel=0.05)


def test_without_a_step_x_comes_back(arguments: dict[str, Any]) -> None:
    x = torch.ones(1, 1, 2, 2)
    assert sample_dpm_fast(exponential, x, torch.tensor([1.0]), **arguments) is x
