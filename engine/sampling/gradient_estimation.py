"""Gradient estimation: an Euler step along a slope pushed on by its last change."""

from __future__ import annotations

from torch import Tensor

from .flow import Flow
from .noise import NoiseSource
from .step import Callback, Denoiser, begin_step


def sample_gradient_estimation(
    model: Denoiser,
    x: Tensor,
    sigmas: Tensor,
    *,
    callback: Callback,
    noise: NoiseSource,
    flow: Flow,
    ge_gamma: float = 2.0,
) -> Tensor:
    """Second-order gradient estimation (Permenter & Yuan 2024, arXiv:2306.04848, algorithm 2).

    The slope is extrapolated to d + (ge_gamma - 1) * (d - previous d); one call a step, and a step to sigma
    0 goes to x0.
    """
    previous = None
    for index in range(len(sigmas) - 1):
        x0 = begin_step(model, x, sigmas, index, callback)
        slope = (x - x0) / sigmas[index]
        if sigmas[index + 1] == 0:
            x = x0
        else:
            ahead = slope if previous is None else slope + (ge_gamma - 1) * (slope - previous)
            x = x + ahead * (sigmas[index + 1] - sigmas[index])
        previous = slope
    return x
