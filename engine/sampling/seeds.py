"""SEEDS: stochastic exponential solvers of two and three stages, exponential Heun among them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ...protocol.errors import InvalidRequestError
from .flow import Flow
from .noise import NoiseSource
from .step import Callback, Denoiser, begin_step, predict


def sample_seeds_2(
    model: Denoiser,
    x: Tensor,
    sigmas: Tensor,
    *,
    callback: Callback,
    noise: NoiseSource,
    flow: Flow,
    eta: float = 1.0,
    s_noise: float = 1.0,
    r: float = 0.5,
    solver_type: str = "phi_1",
) -> Tensor:
    """SEEDS-2 (Gonzalez et al. 2023, arXiv:2305.14267) predicting data in half-log-SNR, two calls a step.

    `r` is where in a step the second call is, `eta` how much noise enters (0: an ODE), and `solver_type`
    whether the two predictions weigh by phi_1 alone or by phi_2 too, which keeps the order for every r.
    A step to sigma 0 goes to x0. Raises `InvalidRequestError` for another solver type.
    """
    if solver_type not in ("phi_1", "phi_2"):
        raise InvalidRequestError(f"solver_type must be phi_1 or phi_2, not {solver_type!r}.")
    sigmas = flow.below_pure_noise(sigmas)
    for index in range(len(sigmas) - 1):
        x0 = begin_step(model, x, sigmas, index, callback)
        if sigmas[index + 1] == 0:
            x = x0
            continue
        step = _Step(x, sigmas[index], sigmas[index + 1], flow, eta, s_noise * flow.noise_scale)
        between = step.at(r, noise)
        change = predict(model, between.reached(x0), between.sigma) - x0
        end = step.at(1.0, noise)
        constant = solver_type == "phi_1"
        x = end.reached(x0 + change / (2 * r)) if constant else end.reached(x0, change / r)
    return x


def sample_exp_heun_2_x0(
    model: Denoiser,
    x: Tensor,
    sigmas: Tensor,
    *,
    callback: Callback,
    noise: NoiseSource,
    flow: Flow,
    solver_type: str = "phi_2",
) -> Tensor:
    """The exponential Heun method: SEEDS-2 with its second call at the end of the step, and no noise."""
    return sample_exp_heun_2_x0_sde(
        model, x, sigmas, callback=callback, noise=noise, flow=flow, eta=0.0, solver_type=solver_type
    )


def sample_exp_heun_2_x0_sde(
    model: Denoiser,
    x: Tensor,
    sigmas: Tensor,
    *,
    callback: Callback,
    noise: NoiseSource,
    flow: Flow,
    eta: float = 1.0,
    s_noise: float = 1.0,
    solver_type: str = "phi_2",
) -> Tensor:
    """The stochastic exponential Heun method: SEEDS-2 with its second call at the end of the step."""
    return sample_seeds_2(
        model,
        x,
        sigmas,
        callback=callback,
        noise=noise,
        flow=flow,
        eta=eta,
        s_noise=s_noise,
        r=1.0,
        solver_type=solver_type,
    )


def sample_seeds_3(
    model: Denoiser,
    x: Tensor,
    sigmas: Tensor,
    *,
    callback: Callback,
    noise: NoiseSource,
    flow: Flow,
    eta: float = 1.0,
    s_noise: float = 1.0,
    r_1: float = 1 / 3,
    r_2: float = 2 / 3,
) -> Tensor:
    """SEEDS-3 (Gonzalez et al. 2023, arXiv:2305.14267): SEEDS-2 with calls at `r_1` and `r_2` of a step."""
    sigmas = flow.below_pure_noise(sigmas)
    for index in range(len(sigmas) - 1):
        x0 = begin_step(model, x, sigmas, index, callback)
        if sigmas[index + 1] == 0:
            x = x0
            continue
        step = _Step(x, sigmas[index], sigmas[index + 1], flow, eta, s_noise * flow.noise_scale)
        first = step.at(r_1, noise)
        slope = (predict(model, first.reached(x0), first.sigma) - x0) / r_1
        second = step.at(r_2, noise)
        slope = (predict(model, second.reached(x0, slope * r_2), second.sigma) - x0) / r_2
        x = step.at(1.0, noise).reached(x0, slope)
    return x


class _Step:
    """A step from `x` at one sigma to another, in half-log-SNR; its noise is drawn as one goes along it."""

    def __init__(
        self, x: Tensor, sigma: Tensor, target: Tensor, flow: Flow, eta: float, s_noise: float
    ) -> None:
        self._x, self._sigma, self._target, self._flow = x, sigma, target, flow
        self._start = flow.half_log_snr(sigma)
        self._length = flow.half_log_snr(target) - self._start
        self._eta, self._s_noise = eta, s_noise
        self._fraction, self._noise = 0.0, torch.zeros_like(x)

    def at(self, fraction: float, noise: NoiseSource) -> _Stage:
        """Return the stage after `fraction` of the step, which must not be before the last one asked for."""
        sigma = self._target
        if fraction != 1:
            sigma = self._flow.sigma_at_half_log_snr(self._start + fraction * self._length)
        way = fraction * self._length
        x = sigma / self._sigma * (-way * self._eta).exp() * self._x
        if self._eta > 0 and self._s_noise > 0:
            gap = (self._fraction - fraction) * self._length * self._eta
            self._noise = gap.exp() * self._noise + (-(2 * gap).expm1()).sqrt() * noise()
            self._fraction = fraction
            x = x + self._noise * (sigma * self._s_noise)
        return _Stage(sigma, x, -way * (1 + self._eta))


@dataclass(frozen=True, eq=False)
class _Stage:
    """A point of a step: its sigma, what of x comes from no prediction, and the exponent of its decay."""

    sigma: Tensor
    x: Tensor
    exponent: Tensor

    def reached(self, x0: Tensor, change: Tensor | None = None) -> Tensor:
        """Return x here when data is `x0` all the way, or changes from it in a line by `change`."""
        phi_1 = self.exponent.expm1()
        data = phi_1 * x0
        if change is not None:
            data = data + (phi_1 - self.exponent) / self.exponent * change
        return self.x - (1 - self.sigma) * data
