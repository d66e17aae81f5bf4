"""RES: a refined exponential solver, in its two-step form."""

from __future__ import annotations

import torch
from torch import Tensor

from .ancestral import split_variance
from .flow import Flow
from .noise import NoiseSource
from .step import Callback, Denoiser, begin_step


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
    return sample_res_multistep_ancestral(
        model, x, sigmas, callback=callback, noise=noise, flow=flow, eta=0.0, s_noise=s_noise
    )


def sample_res_multistep_ancestral(
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
    """RES whose steps end below the next sigma, with noise added back (see `split_variance`).

    ComfyUI adds it as if x were x0 + sigma * noise, for flow models too.
    """
    times, previous, lowered = -sigmas.log(), None, None
    for index in range(len(sigmas) - 1):
        sigma = sigmas[index]
        x0 = begin_step(model, x, sigmas, index, callback)
        down, up = split_variance(sigma, sigmas[index + 1], eta)
        if previous is None or lowered is None or down == 0:
            x = x + (x - x0) / sigma * (down - sigma)
        else:
            length = -down.log() - times[index]
            now, before = _weights(length, (times[index - 1] + lowered.log()) / length)
            x = (-length).exp() * x + length * (now * x0 + before * previous)
        if up > 0:
            x = x + noise() * (s_noise * flow.noise_scale) * up
        previous, lowered = x0, down
    return x


def _weights(length: Tensor, node: Tensor) -> tuple[Tensor, Tensor]:
    """Return the weights of this and the previous x0, the latter taken at `node` step lengths from now."""
    phi1 = torch.expm1(-length) / -length
    phi2 = (phi1 - 1.0) / -length
    before = phi2 / node
    return torch.nan_to_num(phi1 - before, nan=0.0), torch.nan_to_num(before, nan=0.0)
