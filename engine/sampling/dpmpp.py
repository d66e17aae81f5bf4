"""The DPM-Solver++ family: exponential integrators of the data prediction."""

from __future__ import annotations

from torch import Tensor

from .flow import Flow
from .noise import NoiseSource
from .step import Callback, Denoiser, Step, predict


def sample_dpmpp_2m(
    model: Denoiser, x: Tensor, sigmas: Tensor, *, callback: Callback, noise: NoiseSource, flow: Flow
) -> Tensor:
    """Second-order multistep DPM-Solver++ (Lu et al. 2022, arXiv:2211.01095, algorithm 2), one call a step.

    Time is -log(sigma). The first step, and a step to sigma 0, are first order.
    """
    total, times, previous = len(sigmas) - 1, -sigmas.log(), None
    for index in range(total):
        x0 = predict(model, x, sigmas[index])
        callback(Step(index, total, float(sigmas[index]), x, x0))
        length = times[index + 1] - times[index]
        target = x0
        if previous is not None and sigmas[index + 1] != 0:
            weight = length / (2 * (times[index] - times[index - 1]))
            target = (1 + weight) * x0 - weight * previous
        ratio = (-times[index + 1]).exp() / (-times[index]).exp()
        x = ratio * x - (-length).expm1() * target
        previous = x0
    return x
