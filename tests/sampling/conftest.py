"""A denoiser with a known answer, and the arguments every sampler takes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from outboard.engine.sampling.flow import Flow
from outboard.engine.sampling.noise import NoiseSource
from outboard.engine.sampling.step import ignore_step

Solver = Callable[..., Tensor]


def exponential(x: Tensor, sigma: Tensor) -> Tensor:
    """A denoiser whose flow dx/dsigma = (x - x0) / sigma is dx/dsigma = x."""
    return x * (1 - sigma.reshape(-1, *[1] * (x.ndim - 1)))


@pytest.fixture
def arguments() -> dict[str, Any]:
    x = torch.ones(1, 1, 2, 2)
    return {"callback": ignore_step, "noise": NoiseSource(3, x), "flow": Flow(1.0)}


@pytest.fixture
def order(arguments: dict[str, Any]) -> Callable[[Solver], float]:
    """Measure a solver's order: log2 of how much less wrong it gets with twice the steps."""

    def error(solve: Solver, steps: int) -> float:
        sigmas = torch.linspace(0.95, 0.2, steps + 1)
        x = solve(exponential, torch.ones(1, 1, 2, 2), sigmas, **arguments)
        return abs(float(x.mean()) - math.exp(-0.75))

    def measure(solve: Solver) -> float:
        return math.log2(error(solve, 6) / error(solve, 12))

    return measure
