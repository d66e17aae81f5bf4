"""DDPM: the posterior of the diffusion process, given x and x0."""

from __future__ import annotations

from torch import Tensor

from .flow import Flow
from .noise import NoiseSource
from .step import Callback, Denoiser, begin_step


def sample_ddpm(
    model: Denoiser, x: Tensor, sigmas: Tensor, *, callback: Callback, noise: NoiseSource, flow: Flow
) -> Tensor:
    """DDPM (Ho et al. 2020, arXiv:2006.11239, equations 7 and 11), one call a step.

    The noise prediction is taken from x = x0 + sigma * noise, as in ComfyUI also where x is a flow model's.
    """
    for index in range(len(sigmas) - 1):
        sigma, target = sigmas[index], sigmas[index + 1]
        x0 = begin_step(model, x, sigmas, index, callback)
        eps = (x - x0) / sigma
        preserved = x / (1 + sigma**2).sqrt()
        x = _posterior_mean(preserved, eps, _signal(sigma), _signal(target))
        if target > 0:
            x = x + _posterior_variance(_signal(sigma), _signal(target)).sqrt() * noise()
        x = x * (1 + target**2).sqrt()
    return x


def _signal(sigma: Tensor) -> Tensor:
    """Return the paper's alpha bar: the signal's share of the variance of a variance-preserving x."""
    return 1 / (sigma * sigma + 1)


def _posterior_mean(x: Tensor, eps: Tensor, signal: Tensor, target: Tensor) -> Tensor:
    alpha = signal / target
    return (1 / alpha).sqrt() * (x - (1 - alpha) * eps / (1 - signal).sqrt())


def _posterior_variance(signal: Tensor, target: Tensor) -> Tensor:
    return (1 - signal / target) * (1 - target) / (1 - signal)
