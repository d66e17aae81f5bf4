"""RES: a refined exponential solver, in its two-step form."""

from __future__ import annotations

import torch
from torch import Tensor

from .flow import Flow
from .noise import NoiseSource
from .step import Callback, Denoiser, Step, predict


def sample_res_multistep(
    model: Denoiser,
    x: Tensor,
    sigmas: Tensor,
    *,
    callback: Callback,
    noise: NoiseSource,
    flow: Flow,
    s_noise: float = 1.0,
) -> Tensor:
    """Second-order multistep RES (Zhang et al. 2023, arXiv:2308.02157), one call a step.

    Time is -log(sigma). The first step, and a step to sigma 0, are Euler steps. `s_noise` belongs to the
    sampler's signature in ComfyUI, where it scales noise only the ancestral form adds: none here.
    """
    total, times, previous = len(sigmas) - 1, -sigmas.log(), None
    for index in range(total):
        sigma, target = sigmas[index], sigmas[index + 1]
        x0 = predict(model, x, sigma)
        callback(Step(index, total, float(sigma), x, x0))
        if previous is None or target == 0:
            x = x + (x - x0) / sigma * (target - sigma)
        else:
            length = times[index + 1] - times[index]
            now, before = _weights(length, (times[index - 1] - times[index]) / length)
            x = (-length).exp() * x + length * (now * x0 + before * previous)
        previous = x0
    return x


def _weights(length: Tensor, node: Tensor) -> tuple[Tensor, Tensor]:
    """Return the weights of this and the previous x0, the latter taken at `node` step lengths from now."""
    phi1 = torch.expm1(-length) / -length
    phi2 = (phi1 - 1.0) / -length
    before = phi2 / node
    return torch.nan_to_num(phi1 - before, nan=0.0), torch.nan_to_num(before, nan=0.0)
