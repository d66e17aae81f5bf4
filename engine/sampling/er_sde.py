"""ER-SDE: extended reverse-time SDEs, their noise following a function of sigma / alpha."""

from __future__ import annotations

import torch
from torch import Tensor

from .flow import Flow
from .noise import NoiseSource
from .step import Callback, Denoiser, begin_step

_POINTS = 200
"""Of the quadrature, a plain sum."""


def sample_er_sde(
    model: Denoiser,
    x: Tensor,
    sigmas: Tensor,
    *,
    callback: Callback,
    noise: NoiseSource,
    flow: Flow,
    s_noise: float = 1.0,
    max_stage: int = 3,
) -> Tensor:
    """ER-SDE-Solver (Cui et al. 2023, arXiv:2309.06169, algorithms 1 to 3), one call a step.

    `max_stage` is the highest order; time is sigma / alpha, and the noise the paper's fifth ER SDE.
    A step to sigma 0 goes to x0.
    """
    sigmas = flow.below_pure_noise(sigmas)
    ratios = (-flow.half_log_snr(sigmas)).exp()
    x0s: list[Tensor] = []
    slope: Tensor | None = None
    for index in range(len(sigmas) - 1):
        x0s = [begin_step(model, x, sigmas, index, callback), *x0s][:2]
        if sigmas[index + 1] == 0:
            x = x0s[0]
            continue
        start, end, alpha = ratios[index], ratios[index + 1], 1 - sigmas[index + 1]
        kept = _scale(end) / _scale(start)
        x = alpha / (1 - sigmas[index]) * kept * x + alpha * (1 - kept) * x0s[0]
        if len(x0s) > 1 and max_stage >= 2:
            first, second = _integrals(start, end)
            before, slope = slope, (x0s[0] - x0s[1]) / (start - ratios[index - 1])
            x = x + alpha * first * slope
            if before is not None and max_stage >= 3:
                x = x + alpha * second * (slope - before) / ((start - ratios[index - 2]) / 2)
        if s_noise > 0:
            added = (end**2 - start**2 * kept**2).sqrt().nan_to_num(nan=0.0)
            x = x + alpha * added * noise() * (s_noise * flow.noise_scale)
    return x


def _scale(ratio: Tensor) -> Tensor:
    """Return the paper's phi of sigma / alpha, which shapes the noise."""
    return ratio * ((ratio**0.3).exp() + 10.0)


def _integrals(start: Tensor, end: Tensor) -> tuple[Tensor, Tensor]:
    """Return what multiplies the first and the second derivative of x0."""
    length = end - start
    width = -length / _POINTS
    at = end + torch.arange(_POINTS) * width
    first = length + (1 / _scale(at)).sum() * width * _scale(end)
    second = length**2 / 2 + ((at - start) / _scale(at)).sum() * width * _scale(end)
    return first, second
