"""The vocabulary every sampler shares: the denoiser it calls and the step it reports."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

Denoiser = Callable[[Tensor, Tensor], Tensor]
"""`model(x, sigma[B]) -> x0`, guidance and masks already applied; x and x0 share shape, dtype and device."""


@dataclass(frozen=True, eq=False)
class Step:
    """One solver step: its index of `total`, its sigma, the noisy latent and the x0 predicted from it."""

    index: int
    total: int
    sigma: float
    x: Tensor
    x0: Tensor


Callback = Callable[[Step], None]
"""Called once per step; whatever it raises, `CancelledError` above all, ends the run at once."""


def ignore_step(step: Step) -> None:
    """The callback of a caller who does not watch."""


def predict(model: Denoiser, x: Tensor, sigma: Tensor) -> Tensor:
    """Call the denoiser with one scalar `sigma` for every row of `x`."""
    return model(x, sigma * x.new_ones(x.shape[0]))


def begin_step(model: Denoiser, x: Tensor, sigmas: Tensor, index: int, callback: Callback) -> Tensor:
    """Call the denoiser at `sigmas[index]`, report the step, and return x0."""
    x0 = predict(model, x, sigmas[index])
    callback(Step(index, len(sigmas) - 1, float(sigmas[index]), x, x0))
    return x0
