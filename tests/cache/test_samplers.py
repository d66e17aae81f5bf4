"""The cache under the engine's own samplers, of which some call the network several times a step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor

from outboard.engine.cache.choice import Choice
from outboard.engine.cache.config import CacheConfig
from outboard.engine.cache.controller import remove
from outboard.engine.cache.safety import FRESH_NOISE, OWN_LEVELS
from outboard.engine.demo.assets import LATENT_SHAPE
from outboard.engine.demo.digits import decode, prompt, to_graph_space
from outboard.engine.demo.draw import FLOW, digit_sigmas, shipped_model
from outboard.engine.demo.judge import read
from outboard.engine.models.model import Model
from outboard.engine.rank.peers import Alone
from outboard.engine.rank.step_cache import Caches, Loop
from outboard.engine.sampling.call import Call, step_at
from outboard.engine.sampling.guidance import cfg_denoiser
from outboard.engine.sampling.loop import SampleRequest, sample
from outboard.engine.sampling.noise import initial_noise
from outboard.engine.sampling.samplers import SAMPLERS
from outboard.protocol.messages.cache import CacheReport

STEPS, DIGIT = 20, 3
DETERMINISTIC = sorted(SAMPLERS.keys() - FRESH_NOISE - OWN_LEVELS)


@pytest.fixture
def model() -> Iterator[Model]:
    model = shipped_model()
    yield model
    remove(model)


def drawn(model: Model, sampler: str, choice: Choice | None) -> tuple[Tensor, CacheReport | None]:
    """The latent of a guided drawing, and what its cache did."""
    schedule = digit_sigmas(STEPS, sampler)
    levels = schedule.tolist()
    cached = Caches(CacheConfig(choice)).open(None, model, "digits", ("s", "r"), Loop(sampler, {}, levels))

    def predict_x0(x: Tensor, sigma: Tensor, conditioning: Mapping[str, Any], call: Call) -> Tensor:
        level = float(sigma[0])
        with cached.step(model, Call(call.branches, call.rows, step_at(levels, level), level)):
            v = model.predict(x, FLOW.timestep(sigma), conditioning)
        return FLOW.denoised(x, v.float(), sigma)

    noise = initial_noise((1, *LATENT_SHAPE), 0)
    request = SampleRequest(sampler, schedule, noise, torch.zeros_like(noise), 0, FLOW)
    denoiser = cfg_denoiser(predict_x0, prompt(DIGIT), prompt(None), cfg=4.0, rows=1)
    try:
        return sample(request, denoiser), cached.report(Alone())
    finally:
        cached.forget()


@pytest.mark.parametrize("sampler", DETERMINISTIC)
def test_every_deterministic_sampler_draws_the_digit_with_fewer_blocks(model: Model, sampler: str) -> None:
    latent, report = drawn(model, sampler, Choice("balanced"))
    assert report is not None
    assert report.hit_rate > 0.4
    assert read(decode(to_graph_space(latent))[0]).is_digit(DIGIT)


@pytest.mark.parametrize("sampler", ["euler", "heun"])
def test_a_cache_nobody_chose_changes_no_bit(model: Model, sampler: str) -> None:
    before, _ = drawn(model, sampler, None)
    drawn(model, sampler, Choice("fast"))
    assert torch.equal(drawn(model, sampler, None)[0], before)
