"""DPM-Solver-fast: spend a number of model calls on steps of order 3, and what is left on lower ones."""

from __future__ import annotations

import torch
from torch import Tensor

from .dpm_solver import Departure, sigma_of, time_span
from .flow import Flow
from .noise import NoiseSource
from .step import Callback, Denoiser, Step


def sample_dpm_fast(
    model: Denoiser, x: Tensor, sigmas: Tensor, *, callback: Callback, noise: NoiseSource, flow: Flow
) -> Tensor:
    """DPM-Solver-fast (Lu et al. 2022, arXiv:2206.00927, section 3.4): one model call for each of `sigmas`.

    Of the schedule only its ends count, the last one being its last sigma above 0: between them the steps
    are equally long in -log(sigma). A step is reported once, whatever its order.
    """
    total = len(sigmas) - 1
    if total < 1:
        return x
    orders = _orders(total)
    start, end = time_span(sigmas)
    times = torch.linspace(float(start), float(end), len(orders) + 1)
    for index, order in enumerate(orders):
        departure = Departure(model, x, times[index], times[index + 1])
        callback(Step(index, total, float(sigma_of(times[index])), x, departure.x0))
        x = (departure.first, departure.second, departure.third)[order - 1]()
    return x


def _orders(calls: int) -> list[int]:
    """Return the orders of the steps: 3 as often as possible, the last step being of order 1 or 2."""
    thirds, rest = divmod(calls, 3)
    return [3] * thirds + [rest] if rest else [3] * (thirds - 1) + [2, 1]
