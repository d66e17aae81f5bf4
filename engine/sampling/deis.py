"""DEIS: integrate the polynomial through past noise predictions, in the time of a variance-preserving SDE."""

from __future__ import annotations

import torch
from torch import Tensor

from .flow import Flow
from .ipndm import check_order
from .noise import NoiseSource
from .polynomial import lagrange
from .step import Callback, Denoiser, begin_step

_POINTS = 10_000
"""Of the quadrature, a plain sum: its error shows in the fifth digit, so it is part of the method."""


def sample_deis(
    model: Denoiser,
    x: Tensor,
    sigmas: Tensor,
    *,
    callback: Callback,
    noise: NoiseSource,
    flow: Flow,
    max_order: int = 3,
) -> Tensor:
    """tAB-DEIS (Zhang & Chen 2022, arXiv:2204.13902, section 3.3), one call a step.

    As the diff-sampler toolbox sets it up: in the time of the linear VP schedule that takes sigma from 0.002
    to 80 as time goes from 0.001 to 1. The first step, and a step to sigma 0, are Euler steps.
    Raises `UnsupportedRequestError` unless `max_order` is 1 to 4.
    """
    check_order(max_order)
    schedule, slopes = _LinearSchedule(), list[Tensor]()
    times = schedule.time(sigmas)
    for index in range(len(sigmas) - 1):
        x0 = begin_step(model, x, sigmas, index, callback)
        slopes = [(x - x0) / sigmas[index], *slopes][:max_order]
        if len(slopes) == 1 or sigmas[index + 1] <= 0:
            x = x + (sigmas[index + 1] - sigmas[index]) * slopes[0]
            continue
        nodes = times[index - len(slopes) + 1 : index + 1].flip(0)
        for weight, slope in zip(schedule.weights(nodes, times[index + 1]), slopes, strict=True):
            x = x + weight * slope
    return x


class _LinearSchedule:
    """The VP SDE with beta rising in a line over time 0 to 1, alpha(t) = exp(-slope t^2 / 2 - start t).

    alpha is the squared signal, sigma = sqrt((1 - alpha) / alpha). float32 throughout, as in the toolbox.
    """

    def __init__(self, sigma_min: float = 0.002, sigma_max: float = 80.0, first_time: float = 0.001) -> None:
        low, high = (torch.log(torch.tensor(sigma) ** 2 + 1) for sigma in (sigma_min, sigma_max))
        self._slope = 2 * (low / first_time - high) / (first_time - 1)
        self._start = high - 0.5 * self._slope

    def time(self, sigma: Tensor) -> Tensor:
        """Return the time at which the noise is `sigma`."""
        root = (self._start**2 + 2 * self._slope * (sigma**2 + 1).log()).sqrt()
        return (root - self._start) / self._slope

    def weights(self, nodes: Tensor, end: Tensor) -> list[Tensor]:
        """Return the weights of the noise predictions at the times `nodes`, newest first, up to `end`."""
        at = torch.linspace(float(nodes[0]), float(end), _POINTS)
        alpha = torch.exp(-0.5 * at**2 * self._slope - at * self._start)
        speed = 0.5 * (at * self._slope + self._start) / torch.sqrt(alpha * (1 - alpha))
        length = (end - nodes[0]) / _POINTS
        return [torch.sum(speed * lagrange(nodes, which, at)) * length for which in range(len(nodes))]
