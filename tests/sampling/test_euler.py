from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from outboard.engine.sampling.euler import sample_ddim, sample_euler, sample_euler_ancestral
from outboard.engine.sampling.flow import Flow
from outboard.engine.sampling.noise import NoiseSource
from outboard.engine.sampling.step import ignore_step

SIGMAS = torch.tensor([1.0, 0.6, 0.3])


def halve(x: Tensor, sigma: Tensor) -> Tensor:
    return x / 2


def test_euler_is_first_order(order: Callable[..., float]) -> None:
    assert 0.8 < order(sample_euler) < 1.3


def test_ddim_is_the_euler_step(arguments: dict[str, Any]) -> None:
    x = torch.randn(1, 2, 3, 3)
    ours = sample_ddim(halve, x, SIGMAS, **arguments)
    assert torch.equal(ours, sample_euler(halve, x, SIGMAS, **arguments))


def test_a_step_to_zero_lands_on_x0(arguments: dict[str, Any]) -> None:
    x = torch.ones(1, 1, 2, 2)
    for solve in (sample_euler, sample_euler_ancestral):
        assert torch.allclose(solve(halve, x, torch.tensor([0.5, 0.0]), **arguments), x / 2)


def test_ancestral_without_eta_adds_no_noise(arguments: dict[str, Any]) -> None:
    x = torch.randn(1, 2, 3, 3)
    ours = sample_euler_ancestral(halve, x, SIGMAS, eta=0.0, **arguments)
    assert torch.allclose(ours, sample_euler(halve, x, SIGMAS, **arguments), atol=1e-6)


def test_ancestral_keeps_the_noise_level_of_the_flow() -> None:
    latent, noise = torch.full((1, 1, 256, 256), 2.0), torch.randn(1, 1, 256, 256)

    def model(x: Tensor, sigma: Tensor) -> Tensor:
        return latent

    x = sample_euler_ancestral(
        model,
        0.9 * noise + 0.1 * latent,
        torch.tensor([0.9, 0.4]),
        callback=ignore_step,
        noise=NoiseSource(5, noise),
        flow=Flow(1.0),
    )
    assert abs(float(x.mean()) - 0.6 * 2.0) < 0.02
    assert abs(float(x.std()) - 0.4) < 0.02


def test_the_models_noise_scale_multiplies_s_noise(arguments: dict[str, Any]) -> None:
    x = torch.zeros(1, 1, 2, 2)
    sigmas = torch.tensor([1.0, 0.5])
    scaled = arguments | {"flow": Flow(1.0, noise_scale=3.0), "noise": NoiseSource(3, x)}
    plain = arguments | {"noise": NoiseSource(3, x)}
    ours = sample_euler_ancestral(halve, x, sigmas, s_noise=0.5, **scaled)
    assert torch.allclose(ours, sample_euler_ancestral(halve, x, sigmas, s_noise=1.5, **plain))
