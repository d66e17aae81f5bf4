from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from outboard.engine.sampling.flow import Flow
from outboard.engine.sampling.inpaint import Inpaint
from outboard.engine.sampling.loop import SampleRequest, sample
from outboard.engine.sampling.noise import initial_noise
from outboard.engine.sampling.samplers import SAMPLERS
from outboard.engine.sampling.step import Step
from outboard.protocol.errors import CancelledError, InvalidRequestError, UnsupportedRequestError

SHAPE = (2, 3, 4, 4)
TARGET = torch.linspace(-1, 1, 96).reshape(SHAPE)
DETERMINISTIC = (
    *("euler", "heun", "heunpp2", "exp_heun_2_x0", "dpm_2", "lms", "dpm_fast", "dpm_adaptive", "dpmpp_2m"),
    *("ipndm", "ipndm_v", "deis", "res_multistep", "gradient_estimation", "ddim", "uni_pc", "uni_pc_bh2"),
)
OWN_STEPS = {"dpm_fast", "dpm_adaptive"}
"""Samplers that take from the schedule its ends only."""


def towards_target(x: Tensor, sigma: Tensor) -> Tensor:
    return 0.9 * TARGET.to(x.device) + 0.1 * torch.tanh(x)


def exactly_target(x: Tensor, sigma: Tensor) -> Tensor:
    return TARGET


def request(sampler: str = "euler", **changes: Any) -> SampleRequest:
    made = SampleRequest(
        sampler=sampler,
        sigmas=torch.tensor([1.0, 0.8, 0.5, 0.2, 0.0]),
        noise=initial_noise(SHAPE, 11),
        latent=torch.zeros(SHAPE),
        seed=11,
        flow=Flow(1000.0),
    )
    return replace(made, **changes)


@pytest.mark.parametrize("name", sorted(SAMPLERS.keys() - OWN_STEPS))
def test_the_callback_runs_once_a_step_with_x0(name: str) -> None:
    steps: list[Step] = []
    made = request(name)
    sample(made, towards_target, callback=steps.append)
    assert [(step.index, step.total) for step in steps] == [(0, 4), (1, 4), (2, 4), (3, 4)]
    assert [step.sigma for step in steps] == pytest.approx(made.sigmas[:-1].tolist(), abs=2e-4)
    assert all((step.x0 - 0.9 * TARGET).abs().max() <= 0.1001 for step in steps)


@pytest.mark.parametrize("name", SAMPLERS)
def test_every_sampler_arrives_where_the_model_points(name: str) -> None:
    made = request(name, sigmas=torch.tensor([1.0, 0.8, 0.5, 0.2, 0.01, 0.0]))
    assert (sample(made, towards_target) - TARGET).abs().max() < 0.2


@pytest.mark.parametrize("name", SAMPLERS)
def test_a_cancelling_callback_ends_the_run_before_another_model_call(name: str) -> None:
    calls = 0

    def model(x: Tensor, sigma: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        return towards_target(x, sigma)

    def cancel(step: Step) -> None:
        raise CancelledError("The user cancelled.")

    with pytest.raises(CancelledError):
        sample(request(name), model, callback=cancel)
    assert calls == 1


@pytest.mark.parametrize("name", SAMPLERS)
def test_a_run_is_repeatable_and_changes_nothing_it_was_given(name: str) -> None:
    made, state = request(name), torch.get_rng_state()
    inputs = [tensor.clone() for tensor in (made.sigmas, made.noise, made.latent)]
    assert torch.equal(sample(made, towards_target), sample(made, towards_target))
    assert all(map(torch.equal, inputs, (made.sigmas, made.noise, made.latent)))
    assert torch.equal(torch.get_rng_state(), state)


def test_no_sigmas_return_the_latent() -> None:
    made = request(sigmas=torch.empty(0), latent=TARGET)
    assert sample(made, towards_target) is TARGET


def test_a_run_that_stops_early_returns_the_latent_in_what_is_left() -> None:
    made = request(sigmas=torch.tensor([1.0, 0.5]))
    x = 0.5 * made.noise + 0.5 * TARGET
    assert torch.allclose(sample(made, exactly_target), x / 0.5, atol=1e-6)


def test_options_reach_the_sampler() -> None:
    made = request("euler_ancestral")
    quiet = sample(replace(made, options={"eta": 0.0}), towards_target)
    assert torch.allclose(quiet, sample(request("euler"), towards_target), atol=1e-5)
    assert not torch.allclose(quiet, sample(made, towards_target), atol=1e-3)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"sampler": "euler_b"}, UnsupportedRequestError, "euler_b"),
        ({"options": {"colour": 1.0}}, UnsupportedRequestError, "colour"),
        ({"noise": torch.zeros(1, 3, 4, 4)}, InvalidRequestError, "noise"),
        ({"inpaint": Inpaint(torch.ones(4, 4))}, InvalidRequestError, "mask"),
        ({"sigmas": torch.tensor([1.0, float("nan")])}, InvalidRequestError, "sigmas"),
        ({"sigmas": torch.ones(2, 2)}, InvalidRequestError, "sigmas"),
    ],
)
def test_an_impossible_request_is_refused_before_the_model_runs(
    changes: dict[str, Any], error: type[Exception], message: str
) -> None:
    def model(x: Tensor, sigma: Tensor) -> Tensor:
        raise AssertionError("the model ran")

    with pytest.raises(error, match=message):
        sample(request(**changes), model)


def test_what_is_masked_out_comes_back_untouched() -> None:
    mask = torch.zeros(SHAPE)
    mask[..., :2] = 1
    latent = torch.full(SHAPE, 3.0)
    x = sample(request(latent=latent, inpaint=Inpaint(mask)), towards_target)
    assert torch.allclose(x[..., 2:], latent[..., 2:], atol=1e-5)
    assert not torch.allclose(x[..., :2], latent[..., :2], atol=0.5)


def test_ddim_fills_the_kept_region_with_a_second_noise() -> None:
    seen: dict[str, Tensor] = {}
    for name in ("euler", "ddim"):

        def model(x: Tensor, sigma: Tensor, name: str = name) -> Tensor:
            seen.setdefault(name, x)
            return towards_target(x, sigma)

        sample(request(name, inpaint=Inpaint(torch.zeros(SHAPE))), model)
    assert torch.equal(seen["euler"], initial_noise(SHAPE, 11))
    assert torch.equal(seen["ddim"], initial_noise(SHAPE, 12))


def test_uni_pc_ends_above_zero_and_takes_out_what_is_left() -> None:
    x = sample(request("uni_pc"), exactly_target)
    difference = (x - TARGET / 0.999).abs().max()
    assert 0 < difference < 5e-3


@pytest.mark.parametrize("name", DETERMINISTIC)
def test_a_deterministic_sampler_does_not_ask_where_noise_comes_from(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    ours = sample(request(name, noise_device="cuda"), towards_target)
    assert torch.equal(ours, sample(request(name), towards_target))


@pytest.mark.gpu
@pytest.mark.parametrize("name", SAMPLERS)
def test_a_gpu_run_with_cpu_noise_equals_a_cpu_run(name: str) -> None:
    made = request(name, noise_device="cpu", inpaint=Inpaint(torch.rand(SHAPE)))
    assert made.inpaint is not None
    moved = replace(
        made,
        noise=made.noise.cuda(),
        latent=made.latent.cuda(),
        inpaint=replace(made.inpaint, mask=made.inpaint.mask.cuda()),
    )
    difference = sample(moved, towards_target).cpu() - sample(made, towards_target)
    assert difference.abs().max() <= 1e-5
