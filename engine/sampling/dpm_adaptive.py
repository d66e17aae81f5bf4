"""DPM-Solver-adaptive: step lengths chosen by the difference between two orders."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ...protocol.errors import EngineError, InvalidRequestError
from .ancestral import split_variance
from .dpm_solver import Departure, sigma_of, time_of, time_span
from .flow import Flow
from .noise import NoiseSource
from .step import Callback, Denoiser, Step

_NEAR = 1e-5
"""How close to the end, in -log(sigma), counts as arrived."""


def sample_dpm_adaptive(
    model: Denoiser,
    x: Tensor,
    sigmas: Tensor,
    *,
    callback: Callback,
    noise: NoiseSource,
    flow: Flow,
    order: int = 3,
    rtol: float = 0.05,
    atol: float = 0.0078,
    h_init: float = 0.05,
    pcoeff: float = 0.0,
    icoeff: float = 1.0,
    dcoeff: float = 0.0,
    accept_safety: float = 0.81,
    eta: float = 0.0,
    s_noise: float = 1.0,
) -> Tensor:
    """DPM-Solver-12 and -23 (Lu et al. 2022, arXiv:2206.00927, section 3.4 and appendix C), `order` 2 or 3.

    From the first of `sigmas` to the last above 0; those between do not count, and neither does their number:
    each try takes `order` model calls and is reported, also one whose error is above the tolerance of `rtol`
    and `atol` and which starts again from where it was. `eta` adds noise as in ancestral sampling. The other
    options are those of `StepLength`. Raises `InvalidRequestError` for another order, and for an `eta` when
    sigmas rise.
    """
    if order not in (2, 3):
        raise InvalidRequestError(f"The order of dpm_adaptive must be 2 or 3, not {order}.")
    total, tries = len(sigmas) - 1, 0
    if total < 1:
        return x
    time, end = time_span(sigmas)
    direction = 1 if end >= time else -1
    if direction < 0 and eta:
        raise InvalidRequestError("dpm_adaptive cannot add noise (eta above 0) while sigmas rise.")
    length = StepLength(
        direction * abs(h_init), (pcoeff, icoeff, dcoeff), 1.5 if eta else order, accept_safety
    )
    previous = x
    while direction * (end - time) > _NEAR:
        target = direction * torch.minimum(direction * end, direction * (time + length.value))
        down, up = _lowered(time, target, end, eta)
        departure = Departure(model, x, time, down)
        callback(Step(tries, total, float(sigma_of(time)), x, departure.x0))
        low, high = _pair(departure, order)
        error = _error(low, high, previous, rtol, atol)
        _check_error(error, tries)
        if length.accepts(error):
            previous, x, time = low, high, target
            if eta:
                x = x + up * s_noise * noise()
        tries += 1
    return x


class StepLength:
    """A PID controller of the step length `value` (Hairer & Wanner, Solving ODEs II, IV.2).

    `gains` are the proportional, integral and derivative ones, divided by the `order`; a step is accepted
    when the length would not have to shrink below `safety` of itself.
    """

    def __init__(self, value: float, gains: tuple[float, float, float], order: float, safety: float) -> None:
        proportional, integral, derivative = gains
        self.value = value
        self._safety = safety
        self._powers = (
            (proportional + integral + derivative) / order,
            -(proportional + 2 * derivative) / order,
            derivative / order,
        )
        self._accepted: tuple[float, ...] = ()

    def accepts(self, error: float) -> bool:
        """Choose the next length from the `error` of a step, 1 being as much as is tolerated."""
        newest = 1 / (error + 1e-8)
        before = self._accepted or (newest, newest)
        inverses = (newest, *before)
        factor = math.prod(inverse**power for inverse, power in zip(inverses, self._powers, strict=True))
        factor = 1 + math.atan(factor - 1)
        accepted = factor >= self._safety
        self._accepted = (newest, before[0]) if accepted else before
        self.value *= factor
        return accepted


def _lowered(time: Tensor, target: Tensor, end: Tensor, eta: float) -> tuple[Tensor, Tensor]:
    """Return the time to step to, and the noise that leads from there back to `target`."""
    if not eta:
        return target, torch.zeros_like(target)
    down, _ = split_variance(sigma_of(time), sigma_of(target), eta)
    lowered = torch.minimum(end, time_of(down))
    return lowered, (sigma_of(target) ** 2 - sigma_of(lowered) ** 2) ** 0.5


def _pair(departure: Departure, order: int) -> tuple[Tensor, Tensor]:
    """Return x after a step of the order below `order`, and after one of it."""
    if order == 2:
        return departure.first(), departure.second()
    return departure.second(1 / 3), departure.third()


def _error(low: Tensor, high: Tensor, previous: Tensor, rtol: float, atol: float) -> float:
    tolerated = (rtol * torch.maximum(low.abs(), previous.abs())).clamp(min=atol)
    return float(torch.linalg.norm((low - high) / tolerated)) / math.sqrt(low.numel())


def _check_error(error: float, tries: int) -> None:
    # No step length would mend it: the loop would never end.
    if not math.isfinite(error):
        raise EngineError(
            f"The error of step {tries + 1} of dpm_adaptive is {error}: the model computed NaN or infinity, "
            "or the tolerance is 0.",
            hint="Keep rtol and atol above 0, and choose bfloat16 or float32 as the engine's dtype.",
        )
