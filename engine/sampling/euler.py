"""First-order solvers: Euler, its ancestral form for flow models, and DDIM."""

from __future__ import annotations

import math

from torch import Tensor

from .ancestral import FlowRenoise
from .churn import Churn
from .flow import Flow
from .noise import NoiseSource
from .step import Callback, Denoiser, Step, begin_step, predict


def sample_euler(
    model: Denoiser,
    x: Tensor,
    sigmas: Tensor,
    *,
    callback: Callback,
    noise: NoiseSource,
    flow: Flow,
    s_churn: float = 0.0,
    s_tmin: float = 0.0,
    s_tmax: float = math.inf,
    s_noise: float = 1.0,
) -> Tensor:
    """Integrate dx/dsigma = (x - x0) / sigma by Euler steps (Karras et al. 2022, arXiv:2206.00364, alg. 2).

    `x` is the noisy latent [B, C, ...] at `sigmas[0]`, `sigmas` a float32 CPU vector; one model call a step.
    """
    churn, total = Churn(s_churn, s_tmin, s_tmax, s_noise), len(sigmas) - 1
    for index in range(total):
        x, sigma = churn.apply(x, sigmas[index], total, noise)
        x0 = predict(model, x, sigma)
        callback(Step(index, total, float(sigmas[index]), x, x0))
        x = x + (x - x0) / sigma * (sigmas[index + 1] - sigma)
    return x


def sample_ddim(
    model: Denoiser, x: Tensor, sigmas: Tensor, *, callback: Callback, noise: NoiseSource, flow: Flow
) -> Tensor:
    """Deterministic DDIM (Song et al. 2020, arXiv:2010.02502), which in sigma space is the Euler step."""
    return sample_euler(model, x, sigmas, callback=callback, noise=noise, flow=flow)


def sample_euler_ancestral(
    model: Denoiser,
    x: Tensor,
    sigmas: Tensor,
    *,
    callback: Callback,
    noise: NoiseSource,
    flow: Flow,
    eta: float = 1.0,
    s_noise: float = 1.0,
) -> Tensor:
    """Step below the next sigma, then add noise back up to it, keeping a flow model's signal level.

    Ancestral sampling (Song et al. 2020, arXiv:2011.13456) on the path x = sigma * noise + (1 - sigma) * x0:
    `eta` says how far below (0: a plain Euler step, no noise), `s_noise` scales the noise added back.
    """
    total = len(sigmas) - 1
    for index in range(total):
        sigma, target = sigmas[index], sigmas[index + 1]
        x0 = begin_step(model, x, sigmas, index, callback)
        if target == 0:
            x = x0
            continue
        renoise = FlowRenoise.between(sigma, target, eta)
        ratio = renoise.down / sigma
        x = ratio * x + (1 - ratio) * x0
        if eta > 0:
            x = renoise.apply(x, noise() * (s_noise * flow.noise_scale))
    return x
