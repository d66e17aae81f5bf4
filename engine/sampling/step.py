"""The vocabulary every sampler shares: the denoiser it calls and the step it reports."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

Denoiser = Callable[[Tensor, Tensor], Tensor]
"""`model(x, sigma) -> x0`, guidance and masks already applied; x and x0 share shape, dtype and device.

`sigma` [1] is the noise level of all rows, on the CPU, where it may be read without waiting for a GPU.
"""


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
    """Call the denoiser with `sigma`, in the dtype of `x`."""
    return model(x, sigma.reshape(1).to(x.dtype))


def begin_step(model: Denoiser, x: Tensor, sigmas: Tensor, index: int, callback: Callback) -> Tensor:
    """Call the denoiser at `sigmas[index]`, report the step, and return x0."""
    x0 = predict(model, x, sigmas[index])
    callback(Step(index, len(sigmas) - 1, float(sigmas[index]), x, x0))
    return x0
