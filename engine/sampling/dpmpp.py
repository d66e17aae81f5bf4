"""DPM-Solver++: exponential integrators of the data prediction, multistep and ancestral."""

from __future__ import annotations

import torch
from torch import Tensor

from .ancestral import FlowRenoise
from .flow import Flow
from .noise import NoiseSource
from .step import Callback, Denoiser, begin_step, predict


def sample_dpmpp_2m(
    model: Denoiser, x: Tensor, sigmas: Tensor, *, callback: Callback, noise: NoiseSource, flow: Flow
) -> Tensor:
    """Second-order multistep DPM-Solver++ (Lu et al. 2022, arXiv:2211.01095, algorithm 2), one call a step.

    Time is -log(sigma). The first step, and a step to sigma 0, are first order.
    """
    total, times, previous = len(sigmas) - 1, -sigmas.log(), None
    for index in range(total):
        x0 = begin_step(model, x, sigmas, index, callback)
        length = times[index + 1] - times[index]
        target = x0
        if previous is not None and sigmas[index + 1] != 0:
            weight = length / (2 * (times[index] - times[index - 1]))
            target = (1 + weight) * x0 - weight * previous
        ratio = (-times[index + 1]).exp() / (-times[index]).exp()
        x = ratio * x - (-length).expm1() * target
        previous = x0
    return x


def sample_dpmpp_2s_ancestral(
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
    """Single-step DPM-Solver++ of order 2 (Lu et al. 2022, arXiv:2211.01095, algorithm 1), two calls a step.

    Steps end below the next sigma and noise is added back (see `FlowRenoise`). The second call is half-way
    in log-SNR, or at sigma 0.9999 where that has no half. A step to sigma 0 goes to x0.
    """
    for index in range(len(sigmas) - 1):
        sigma, target = sigmas[index], sigmas[index + 1]
        x0 = begin_step(model, x, sigmas, index, callback)
        if target == 0:
            x = x0
            continue
        renoise = FlowRenoise.between(sigma, target, eta)
        middle = _half_way(sigma, renoise.down, flow)
        x0 = predict(model, x0 + (x - x0) * (middle / sigma), middle)
        x = x0 + (x - x0) * (renoise.down / sigma)
        if eta > 0:
            x = renoise.apply(x, noise() * (s_noise * flow.noise_scale))
    return x


def _half_way(sigma: Tensor, target: Tensor, flow: Flow) -> Tensor:
    if sigma == 1:
        return torch.full_like(sigma, 0.9999)
    start, end = flow.half_log_snr(sigma), flow.half_log_snr(target)
    return flow.sigma_at_half_log_snr(start + (end - start) / 2)
