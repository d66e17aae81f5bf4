"""Inpainting: hold the unmasked region of a latent to its source while the rest is sampled."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .flow import Flow
from .step import Denoiser

_INTERPOLATION = {1: "linear", 2: "bilinear", 3: "trilinear"}


@dataclass(frozen=True)
class Differential:
    """A grey mask read as the time each pixel joins in (Levin & Fried 2023, arXiv:2306.00950).

    `strength` in (0, 1) mixes the resulting binary mask with the grey one, anything else takes it whole;
    `sigma_min` is the smallest sigma of the model's table.
    """

    strength: float
    sigma_min: float


@dataclass(frozen=True, eq=False)
class Inpaint:
    """What to keep: `mask` is [B, C, ...] like the latent, 1 where it is sampled and 0 where it is kept.

    `clean_latent` marks models that see the kept region without noise (LTX, Wan 2.2 5B, HunyuanVideo).
    """

    mask: Tensor
    clean_latent: bool = False
    differential: Differential | None = None


def inpaint_denoiser(
    model: Denoiser, inpaint: Inpaint, *, latent: Tensor, noise: Tensor, sigmas: Tensor, flow: Flow
) -> Denoiser:
    """Return `model` with the kept region replaced in what it sees and in what it predicts.

    It sees `latent` noised with `noise` to the current level there, and `latent` is its x0.
    """

    def denoise(x: Tensor, sigma: Tensor) -> Tensor:
        mask = _mask_at(inpaint, sigma, sigmas, flow)
        kept = latent if inpaint.clean_latent else flow.noise_scaling(sigma, noise, latent)
        x0 = model(x * mask + kept * (1.0 - mask), sigma)
        return x0 * mask + latent * (1.0 - mask)

    return denoise


def fit_mask(mask: Tensor, shape: Sequence[int]) -> Tensor:
    """Return `mask` ([..., H, W], any size) resized and repeated to the latent `shape` [B, C, ...]."""
    size = tuple(shape[2:])
    if len(size) == 2:
        mask = mask.reshape(-1, 1, *mask.shape[-2:])
    elif len(size) == 3 and mask.ndim < 5:
        mask = mask.reshape(1, 1, -1, *mask.shape[-2:])
    resized: Tensor = torch.nn.functional.interpolate(mask.float(), size=size, mode=_INTERPOLATION[len(size)])
    times = [math.ceil(want / have) for want, have in zip(shape[:2], resized.shape[:2], strict=True)]
    return resized.repeat(*times, *[1] * len(size))[: shape[0], : shape[1]]


def _mask_at(inpaint: Inpaint, sigma: Tensor, sigmas: Tensor, flow: Flow) -> Tensor:
    mask, differential = inpaint.mask.float(), inpaint.differential
    if differential is None:
        return mask
    last = flow.timestep(sigmas[-1].clamp(min=differential.sigma_min))
    threshold = (flow.timestep(sigma.reshape(-1)[0]) - last) / (flow.timestep(sigmas[0]) - last)
    binary = (mask >= threshold).to(mask.dtype)
    if 0 < differential.strength < 1:
        return differential.strength * binary + (1 - differential.strength) * mask
    return binary
