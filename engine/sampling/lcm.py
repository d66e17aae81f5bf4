"""Consistency sampling: jump to x0, noise it again to the next level."""

from __future__ import annotations

from torch import Tensor

from .flow import Flow
from .noise import NoiseSource
from .step import Callback, Denoiser, begin_step


def sample_lcm(
    model: Denoiser,
    x: Tensor,
    sigmas: Tensor,
    *,
    callback: Callback,
    noise: NoiseSource,
    flow: Flow,
    s_noise: float = 1.0,
    s_noise_end: float | None = None,
    noise_clip_std: float = 0.0,
) -> Tensor:
    """Multistep consistency sampling (Luo et al. 2023, arXiv:2310.04378), one call a step.

    The noise put back is scaled by `s_noise`, moving in a line to `s_noise_end` at the last step (None:
    constant), and clamped to `noise_clip_std` of its standard deviations (0: not clamped).
    """
    total = len(sigmas) - 1
    end = s_noise if s_noise_end is None else s_noise_end
    for index in range(total):
        x0 = begin_step(model, x, sigmas, index, callback)
        x = x0
        if sigmas[index + 1] > 0:
            drawn = _clipped(noise(), noise_clip_std)
            scale = s_noise + (end - s_noise) * (index / (total - 1) if total > 1 else 0.0)
            x = flow.noise_scaling(sigmas[index + 1], drawn * scale, x)
    return x


def _clipped(noise: Tensor, deviations: float) -> Tensor:
    if deviations <= 0:
        return noise
    limit = deviations * noise.std()
    return noise.clamp(min=-limit, max=limit)
