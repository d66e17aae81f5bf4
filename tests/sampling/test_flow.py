from __future__ import annotations

import torch

from outboard.engine.sampling.flow import Flow

FLOW = Flow(1000.0, noise_scale=0.5)
NOISE, LATENT = torch.randn(2, 3, 4, 4), torch.randn(2, 3, 4, 4)


def test_full_noise_forgets_the_latent() -> None:
    assert torch.equal(FLOW.noise_scaling(torch.tensor(1.0), NOISE, LATENT), 0.5 * NOISE)


def test_each_row_may_have_its_own_sigma() -> None:
    x = FLOW.noise_scaling(torch.tensor([1.0, 0.0]), NOISE, LATENT)
    assert torch.equal(x[0], 0.5 * NOISE[0])
    assert torch.equal(x[1], LATENT[1])


def test_the_inverse_returns_the_latent_of_a_noiseless_run() -> None:
    sigma = torch.tensor(0.25)
    x = FLOW.noise_scaling(sigma, torch.zeros_like(NOISE), LATENT)
    assert torch.allclose(FLOW.inverse_noise_scaling(sigma, x), LATENT)


def test_the_velocity_of_a_noised_latent_gives_the_latent_back() -> None:
    sigma = torch.tensor([0.3, 0.9])
    x = FLOW.noise_scaling(sigma, NOISE, LATENT)
    assert torch.allclose(FLOW.denoised(x, 0.5 * NOISE - LATENT, sigma), LATENT, atol=1e-6)


def test_a_timestep_is_a_multiple_of_sigma() -> None:
    assert FLOW.timestep(torch.tensor([0.5])).tolist() == [500.0]
