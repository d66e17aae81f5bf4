"""Heun++: a step along a mean of the slopes here and at the next sigmas."""

from __future__ import annotations

import math

from torch import Tensor

from .churn import Churn
from .flow import Flow
from .noise import NoiseSource
from .step import Callback, Denoiser, Step, predict


def sample_heunpp2(
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
    """Heun's method (Karras et al. 2022, arXiv:2206.00364) looking two sigmas ahead, three calls a step.

    Each slope further down weighs as much as its sigma does against the first; what is left is the weight of
    the slope here. The last step is an Euler step, the one before it looks one sigma ahead.
    Source: the Heun++ sampler of Carzit's sd-webui-samplers-scheduler.
    """
    churn, total = Churn(s_churn, s_tmin, s_tmax, s_noise, draws_always=True), len(sigmas) - 1
    for index in range(total):
        x, sigma = churn.apply(x, sigmas[index], total, noise)
        x0 = predict(model, x, sigma)
        callback(Step(index, total, float(sigmas[index]), x, x0))
        ahead = [later for later in sigmas[index + 1 : index + 3] if later != sigmas[-1]]
        weights = [later / ((1 + len(ahead)) * sigmas[0]) for later in ahead]
        slope = (x - x0) / sigma
        mean, end, reached = slope * (1 - sum(weights)), x, sigma
        for weight, later in zip(weights, ahead, strict=True):
            end, reached = end + slope * (later - reached), later
            slope = (end - predict(model, end, later)) / later
            mean = mean + slope * weight
        x = x + mean * (sigmas[index + 1] - sigma)
    return x
