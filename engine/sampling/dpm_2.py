"""DPM-Solver-2: a step along the slope at its middle, in log(sigma)."""

from __future__ import annotations

import math

from torch import Tensor

from .ancestral import FlowRenoise
from .churn import Churn
from .flow import Flow
from .noise import NoiseSource
from .step import Callback, Denoiser, Step, begin_step, predict


def sample_dpm_2(
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
    """Midpoint steps after DPM-Solver-2 (Lu et al. 2022, arXiv:2206.00927), two model calls each.

    Churned like algorithm 2 of Karras et al. 2022 (arXiv:2206.00364). A step to sigma 0 is an Euler step.
    """
    churn, total = Churn(s_churn, s_tmin, s_tmax, s_noise), len(sigmas) - 1
    for index in range(total):
        x, sigma = churn.apply(x, sigmas[index], total, noise)
        x0 = predict(model, x, sigma)
        callback(Step(index, total, float(sigmas[index]), x, x0))
        x = _moved(model, x, x0, sigma, sigmas[index + 1])
    return x


def sample_dpm_2_ancestral(
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
    """Midpoint steps that end below the next sigma, with noise added back (see `FlowRenoise`)."""
    for index in range(len(sigmas) - 1):
        x0 = begin_step(model, x, sigmas, index, callback)
        renoise = FlowRenoise.between(sigmas[index], sigmas[index + 1], eta)
        x = _moved(model, x, x0, sigmas[index], renoise.down)
        if eta > 0 and renoise.down != 0:
            x = renoise.apply(x, noise() * (s_noise * flow.noise_scale))
    return x


def _moved(model: Denoiser, x: Tensor, x0: Tensor, sigma: Tensor, target: Tensor) -> Tensor:
    slope = (x - x0) / sigma
    if target != 0:
        middle = (sigma.log().lerp(target.log(), 0.5)).exp()
        between = x + slope * (middle - sigma)
        slope = (between - predict(model, between, middle)) / middle
    return x + slope * (target - sigma)
