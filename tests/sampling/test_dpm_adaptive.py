from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from outboard.engine.sampling.dpm_adaptive import StepLength, sample_dpm_adaptive
from outboard.engine.sampling.step import Step
from outboard.protocol.errors import EngineError, InvalidRequestError

SIGMAS = torch.tensor([0.9, 0.5, 0.01, 0.0])


def exponential(x: Tensor, sigma: Tensor) -> Tensor:
    return x * (1 - sigma.reshape(-1, 1, 1, 1))


def nothing(x: Tensor, sigma: Tensor) -> Tensor:
    return torch.zeros_like(x)


def broken(x: Tensor, sigma: Tensor) -> Tensor:
    return torch.full_like(x, math.nan)


def start() -> Tensor:
    return torch.full((1, 1, 2, 2), math.exp(0.9))


@pytest.mark.parametrize("order", [2, 3])
def test_a_smaller_tolerance_costs_calls_and_error(order: int, arguments: dict[str, Any]) -> None:
    calls, errors = [], []
    for tolerance in (0.05, 0.0005):
        seen: list[float] = []

        def model(x: Tensor, sigma: Tensor, seen: list[float] = seen) -> Tensor:
            seen.append(float(sigma[0]))
            return exponential(x, sigma)

        options: dict[str, Any] = {"order": order, "rtol": tolerance, "atol": tolerance}
        x = sample_dpm_adaptive(model, start(), SIGMAS, **options, **arguments)
        calls.append(len(seen))
        errors.append(abs(float(x.mean()) - math.exp(0.01)))
    assert calls[0] < calls[1]
    assert errors[1] < errors[0] < 0.05


def test_every_try_is_reported(arguments: dict[str, Any]) -> None:
    steps: list[Step] = []
    given = arguments | {"callback": steps.append}
    sample_dpm_adaptive(exponential, start(), SIGMAS, h_init=3.0, rtol=1e-3, atol=1e-3, **given)
    sigmas = [step.sigma for step in steps]
    assert [step.index for step in steps] == list(range(len(steps)))
    assert sigmas[0] == sigmas[1], "the first try was far too long"
    assert sigmas == sorted(sigmas, reverse=True)


def test_it_also_runs_backwards(arguments: dict[str, Any]) -> None:
    x = sample_dpm_adaptive(exponential, torch.ones(1, 1, 2, 2), torch.tensor([0.01, 0.9]), **arguments)
    assert float(x.mean()) == pytest.approx(math.exp(0.89), rel=0.02)


def test_eta_adds_noise(arguments: dict[str, Any]) -> None:
    x = torch.zeros(1, 1, 2, 2)
    sigmas = torch.tensor([0.9, 0.5])
    assert sample_dpm_adaptive(nothing, x, sigmas, eta=1.0, **arguments).any()


@pytest.mark.parametrize(
    ("sigmas", "options"), [(SIGMAS, {"order": 4}), (torch.tensor([0.1, 0.9]), {"eta": 1.0})]
)
def test_what_makes_no_sense_is_refused(
    sigmas: Tensor, options: dict[str, Any], arguments: dict[str, Any]
) -> None:
    with pytest.raises(InvalidRequestError, match=next(iter(options))):
        sample_dpm_adaptive(exponential, start(), sigmas, **options, **arguments)


def test_a_broken_model_ends_the_search_for_a_step(arguments: dict[str, Any]) -> None:
    with pytest.raises(EngineError, match="step 1"):
        sample_dpm_adaptive(broken, start(), SIGMAS, **arguments)


def test_the_step_length_follows_the_error() -> None:
    length = StepLength(1.0, (0.0, 1.0, 0.0), 3, 0.81)
    assert length.accepts(0.1)
    assert length.value > 1
    longer = length.value
    assert not length.accepts(30.0)
    assert length.value < longer
