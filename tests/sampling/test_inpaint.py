from __future__ import annotations

import pytest
import torch
from torch import Tensor

from outboard.engine.sampling.flow import Flow
from outboard.engine.sampling.inpaint import Differential, Inpaint, fit_mask, inpaint_denoiser
from outboard.engine.sampling.step import Denoiser

FLOW = Flow(1000.0)
LATENT, NOISE = torch.full((1, 1, 1, 4), 5.0), torch.full((1, 1, 1, 4), -1.0)
GREY = torch.tensor([[[[0.0, 0.25, 0.75, 1.0]]]])
SIGMAS = torch.tensor([1.0, 0.5, 0.0])


class Watched:
    """A denoiser that predicts 9 and keeps what it saw."""

    seen: Tensor

    def __call__(self, x: Tensor, sigma: Tensor) -> Tensor:
        self.seen = x
        return torch.full_like(x, 9.0)


def held(model: Denoiser, inpaint: Inpaint) -> Denoiser:
    return inpaint_denoiser(model, inpaint, latent=LATENT, noise=NOISE, sigmas=SIGMAS, flow=FLOW)


def test_the_kept_region_is_seen_noised_and_predicted_clean() -> None:
    model, x = Watched(), torch.full_like(LATENT, 7.0)
    x0 = held(model, Inpaint((GREY > 0.5).float()))(x, torch.tensor([0.5]))
    assert model.seen.flatten().tolist() == [2.0, 2.0, 7.0, 7.0]
    assert x0.flatten().tolist() == [5.0, 5.0, 9.0, 9.0]


def test_some_models_see_the_kept_region_clean() -> None:
    model = Watched()
    held(model, Inpaint(torch.zeros_like(GREY), clean_latent=True))(NOISE, torch.tensor([0.5]))
    assert torch.equal(model.seen, LATENT)


@pytest.mark.parametrize(
    ("sigma", "sampled"), [(1.0, [0, 0, 0, 1]), (0.7, [0, 0, 1, 1]), (0.2, [0, 1, 1, 1])]
)
def test_a_grey_mask_lets_pixels_in_by_and_by(sigma: float, sampled: list[int]) -> None:
    inpaint = Inpaint(GREY, differential=Differential(1.0, 0.003))
    x0 = held(Watched(), inpaint)(NOISE, torch.tensor([sigma]))
    assert x0.flatten().tolist() == [9.0 if inside else 5.0 for inside in sampled]


def test_strength_mixes_the_binary_mask_with_the_grey_one() -> None:
    inpaint = Inpaint(GREY, differential=Differential(0.5, 0.003))
    x0 = held(Watched(), inpaint)(NOISE, torch.tensor([0.7]))
    mask = 0.5 * torch.tensor([0.0, 0.0, 1.0, 1.0]) + 0.5 * GREY.flatten()
    assert torch.allclose(x0.flatten(), 9.0 * mask + 5.0 * (1 - mask))


@pytest.mark.parametrize("mask", [torch.ones(16, 24), torch.ones(1, 16, 24), torch.ones(1, 1, 4, 6)])
@pytest.mark.parametrize("shape", [(2, 4, 8, 12), (2, 4, 3, 8, 12)])
def test_a_mask_of_any_size_fits_any_latent(mask: Tensor, shape: tuple[int, ...]) -> None:
    fitted = fit_mask(mask, shape)
    assert tuple(fitted.shape) == shape
    assert bool((fitted == 1).all())


def test_a_mask_per_row_stays_with_its_row() -> None:
    fitted = fit_mask(torch.stack([torch.zeros(4, 4), torch.ones(4, 4)]), (2, 3, 4, 4))
    assert fitted[0].sum() == 0
    assert bool((fitted[1] == 1).all())
