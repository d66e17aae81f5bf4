"""Changes to the combined prediction."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from ....protocol.messages.base import Record
from ....protocol.messages.guidance import CfgNorm, CfgZeroStar, EpsilonScaling, Mahiro, ScoreRescaling
from .moment import After, Moment, chosen


def cfg_norm(change: CfgNorm, moment: Moment, x0: Tensor) -> Tensor:
    """Make no pixel of `x0` longer, across its channels, than the positive has it."""
    wanted = torch.linalg.vector_norm(moment.positive, dim=1, keepdim=True)
    length = torch.linalg.vector_norm(x0, dim=1, keepdim=True)
    factor: Tensor = (wanted / (length + 1e-8)).clamp(min=0.0, max=1.0)
    return x0 * factor * change.strength


def cfg_zero_star(_: CfgZeroStar, moment: Moment, x0: Tensor) -> Tensor:
    """Weigh the negative by the least-squares factor of its noise (Fan et al. 2025, arXiv:2503.18886)."""
    positive, negative = ((moment.x - part).flatten(1) for part in (moment.positive, moment.negative))
    factor = (positive * negative).sum(1) / ((negative**2).sum(1) + 1e-8)
    factor = factor.reshape(-1, *[1] * (x0.ndim - 1))
    return x0 + moment.negative * (factor - 1.0) + moment.scale * moment.negative * (1.0 - factor)


def mahiro(_: Mahiro, moment: Moment, x0: Tensor) -> Tensor:
    """Mix `x0` with the scaled positive by how alike the scaled negative and the mean of the two are.

    Likeness is the cosine across the channels of square roots that keep their signs, averaged over the batch.
    """
    leap = moment.positive * moment.scale
    alike = functional.cosine_similarity(_root(moment.negative * moment.scale), _root((leap + x0) / 2))
    weight = 2 * (alike.mean() + 1)
    return (weight * x0 + (4 - weight) * leap) / 4


def epsilon_scaling(change: EpsilonScaling, moment: Moment, x0: Tensor) -> Tensor:
    """Divide the predicted noise by `factor` (Ning et al. 2023, arXiv:2308.15321)."""
    return moment.x - (moment.x - x0) / change.factor


def score_rescaling(change: ScoreRescaling, moment: Moment, x0: Tensor) -> Tensor:
    """Rescale the score by the signal to noise ratio (arXiv:2510.01184, equation 6)."""
    half = moment.flow.half_log_snr(moment.sigma)
    snr = (2 * half).exp()
    if change.k == 1 or bool(moment.sigma == 0) or bool(snr == 0):
        return x0
    ratio = (snr * change.variance + 1) / (snr * change.variance / change.k + 1)
    ratio = torch.where(torch.isposinf(snr), change.k, ratio)
    signal = moment.sigma * half.exp()
    # Near pure noise the first end is huge and hardly counts; lerp keeps its rounding out.
    return torch.lerp(moment.x / signal, x0, float(ratio))


FUNCTIONS: Mapping[type[Record], Callable[..., Any]] = {
    CfgNorm: cfg_norm,
    CfgZeroStar: cfg_zero_star,
    Mahiro: mahiro,
    EpsilonScaling: epsilon_scaling,
    ScoreRescaling: score_rescaling,
}


def after_of(change: Record) -> After | None:
    """Return what `change` does after the combination; None when it does something else."""
    return chosen(FUNCTIONS, change)


def _root(x: Tensor) -> Tensor:
    return x.abs().sqrt() * x.sign()
