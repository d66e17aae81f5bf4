from __future__ import annotations

import pytest
import torch
from torch import Tensor

from outboard.engine.cache.safety import FRESH_NOISE, OWN_LEVELS, objection
from outboard.engine.sampling.flow import Flow
from outboard.engine.sampling.loop import SampleRequest, sample
from outboard.engine.sampling.samplers import SAMPLERS


def drawn_with(sampler: str, seed: int) -> Tensor:
    noise = torch.randn(1, 2, 4, 4, generator=torch.Generator().manual_seed(0))
    request = SampleRequest(
        sampler, torch.linspace(0.95, 0, 7), noise, torch.zeros_like(noise), seed, Flow(multiplier=1.0)
    )
    return sample(request, lambda x, sigma: x * 0.5 + sigma.reshape(-1, 1, 1, 1))


@pytest.mark.parametrize("sampler", sorted(SAMPLERS.keys() - OWN_LEVELS))
def test_a_sampler_is_listed_when_its_picture_depends_on_more_than_the_first_noise(sampler: str) -> None:
    fresh = not torch.equal(drawn_with(sampler, 1), drawn_with(sampler, 2))
    assert (sampler in FRESH_NOISE) == fresh
    assert bool(objection(sampler, {})) == fresh


def test_noise_that_is_switched_off_is_no_objection() -> None:
    assert "euler_ancestral" in objection("euler_ancestral", {"eta": 0.5})
    assert objection("euler_ancestral", {"eta": 0.0}) == ""
    assert objection("er_sde", {"s_noise": 0}) == ""


def test_churn_is_fresh_noise_too() -> None:
    assert "s_churn" in objection("euler", {"s_churn": 5.0})
    assert objection("heun", {"s_churn": 0.0}) == ""


@pytest.mark.parametrize("sampler", sorted(OWN_LEVELS))
def test_samplers_that_choose_their_steps_are_refused(sampler: str) -> None:
    assert "noise levels" in objection(sampler, {"eta": 0.0})
