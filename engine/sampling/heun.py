"""Heun's method: an Euler step, corrected by the slope at its end."""

from __future__ import annotations

import math

from torch import Tensor

from .churn import Churn
from .flow import Flow
from .noise import NoiseSource
from .step import Callback, Denoiser, Step, predict


def sample_heun(
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
    """Second-order steps (Karras et al. 2022, arXiv:2206.00364, algorithm 2), two model calls each.

    A step to sigma 0 has no slope at its end and stays an Euler step of one call.
    """
    churn, total = Churn(s_churn, s_tmin, s_tmax, s_noise), len(sigmas) - 1
    for index in range(total):
        x, sigma = churn.apply(x, sigmas[index], total, noise)
        target = sigmas[index + 1]
        x0 = predict(model, x, sigma)
        callback(Step(index, total, float(sigmas[index]), x, x0))
        slope, length = (x - x0) / sigma, target - sigma
        if target != 0:
            end = x + slope * length
            slope = (slope + (end - predict(model, end, target)) / target) / 2
        x = x + slope * length
    return x
