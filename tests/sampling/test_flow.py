from __future__ import annotations

import pytest
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


@pytest.mark.parametrize(
    ("shift", "fraction", "sigma"), [(1.0, 0.25, 0.75), (3.0, 0.5, 0.75), (3.0, -1.0, 1.0)]
)
def test_a_share_of_the_schedule_has_a_sigma(shift: float, fraction: float, sigma: float) -> None:
    assert Flow(1.0, shift=shift).sigma_at(fraction) == pytest.approx(sigma)
    assert Flow(1.0, shift=shift).sigma_at(1.0) == 0


def test_half_log_snr_and_back() -> None:
    flow, sigma = Flow(1.0), torch.tensor([0.9, 0.5, 0.1])
    assert torch.allclose(flow.half_log_snr(sigma).exp(), (1 - sigma) / sigma)
    assert torch.allclose(flow.sigma_at_half_log_snr(flow.half_log_snr(sigma)), sigma)


def test_only_pure_noise_is_moved_to_where_it_has_a_log_snr() -> None:
    flow = Flow(1.0, shift=3.0)
    moved = flow.below_pure_noise(torch.tensor([1.0, 0.5, 0.0]))
    assert moved.tolist() == pytest.approx([flow.sigma_at(1e-4), 0.5, 0.0])
    assert moved[0] < 1
    for sigmas in (torch.tensor([0.9, 0.5]), torch.tensor([1.0])):
        assert flow.below_pure_noise(sigmas) is sigmas
