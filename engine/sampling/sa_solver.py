"""SA-Solver: stochastic Adams, a multistep predictor and corrector for the SDE."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ...protocol.errors import UnsupportedRequestError
from .flow import Flow
from .noise import NoiseSource
from .step import Callback, Denoiser, begin_step, predict

_NOISY = 0.2, 0.8
"""Between which fractions of the model's schedule noise enters, unless told otherwise."""


def sample_sa_solver(
    model: Denoiser,
    x: Tensor,
    sigmas: Tensor,
    *,
    callback: Callback,
    noise: NoiseSource,
    flow: Flow,
    s_noise: float = 1.0,
    predictor_order: int = 3,
    corrector_order: int = 4,
    use_pece: bool = False,
    simple_order_2: bool = False,
) -> Tensor:
    """SA-Solver predicting data (Xue et al. 2023, arXiv:2309.05019, algorithm 1), one call a step.

    Noise enters where the sigma stepped to is in the middle of the model's schedule, its strength tau 1
    there and 0 elsewhere. `use_pece` calls the model again at each corrected x; `simple_order_2` takes the
    paper's simplified weights (appendix D) where the order is 2. Before a final sigma 0 orders fall, and the
    step there goes to x0. Raises `UnsupportedRequestError` unless the predictor's order is at least 1 and the
    corrector's at least 0.
    """
    if predictor_order < 1 or corrector_order < 0:
        raise UnsupportedRequestError(
            f"sa_solver has no orders {predictor_order} and {corrector_order}.",
            hint="The predictor's order must be at least 1, the corrector's at least 0.",
        )
    sigmas, total, scale = flow.below_pure_noise(sigmas), len(sigmas) - 1, s_noise * flow.noise_scale
    most, least = (flow.sigma_at(fraction) for fraction in _NOISY)
    predicted, move, known = x, None, list[_Known]()
    for index in range(total):
        sigma, target, left = sigmas[index], sigmas[index + 1], total - index
        newest = _Known(flow.half_log_snr(sigma), begin_step(model, predicted, sigmas, index, callback))
        known = [newest, *known][: max(predictor_order, corrector_order)]
        orders = _orders(predictor_order, corrector_order, left if sigmas[-1] == 0 else math.inf)
        corrects = move is not None and orders[1] > 0 and (use_pece or target != 0)
        if move is not None and corrects:
            x = move.corrected(x, known[: orders[1]])
            if use_pece:
                known[0] = _Known(newest.time, predict(model, x, sigma))
        else:
            x = predicted
        if target == 0:
            return known[0].x0
        tau = 1.0 if least <= float(target) <= most else 0.0
        move = _Move(flow, sigma, target, tau, simple_order_2)
        predicted = move.predicted(x, known[: orders[0]], noise, scale)
    return predicted


def sample_sa_solver_pece(
    model: Denoiser,
    x: Tensor,
    sigmas: Tensor,
    *,
    callback: Callback,
    noise: NoiseSource,
    flow: Flow,
    s_noise: float = 1.0,
    predictor_order: int = 3,
    corrector_order: int = 4,
    simple_order_2: bool = False,
) -> Tensor:
    """SA-Solver that predicts, evaluates, corrects and evaluates again: two calls a step but the first."""
    return sample_sa_solver(
        model,
        x,
        sigmas,
        callback=callback,
        noise=noise,
        flow=flow,
        s_noise=s_noise,
        predictor_order=predictor_order,
        corrector_order=corrector_order,
        use_pece=True,
        simple_order_2=simple_order_2,
    )


def _orders(predictor: int, corrector: int, left: float) -> tuple[int, int]:
    """Return the orders to use when `left` steps are left, this one included."""
    return int(min(predictor, left - 1)), int(min(corrector, left))


@dataclass(frozen=True, eq=False)
class _Known:
    """The x0 the model gave at a half-log-SNR."""

    time: Tensor
    x0: Tensor


class _Move:
    """A step of the SDE of strength `tau`, first predicted and then corrected, with the same noise."""

    def __init__(self, flow: Flow, sigma: Tensor, target: Tensor, tau: float, simple: bool) -> None:
        self._sigma, self._target, self._tau, self._simple = sigma, target, tau, simple
        self._end = flow.half_log_snr(target)
        self._length = self._end - flow.half_log_snr(sigma)
        self._noise: Tensor | None = None

    def predicted(self, x: Tensor, known: Sequence[_Known], noise: NoiseSource, s_noise: float) -> Tensor:
        """Return x at the target from what is `known`, newest first, up to the start."""
        if self._tau > 0 and s_noise > 0:
            entered = (-(-2 * self._tau**2 * self._length).expm1()).sqrt()
            self._noise = noise() * (self._target * entered * s_noise)
        return self.corrected(x, known)

    def corrected(self, x: Tensor, known: Sequence[_Known]) -> Tensor:
        """Return x at the target from what is `known`, newest first, there and before."""
        x = self._target / self._sigma * (-(self._tau**2) * self._length).exp() * x
        for weight, point in zip(self._weights(known), known, strict=True):
            x = x + (1 - self._target) * weight * point.x0
        return x if self._noise is None else x + self._noise

    def _weights(self, known: Sequence[_Known]) -> Sequence[float]:
        rate, length = 1 + self._tau**2, float(self._length)
        nodes = [float(point.time - self._end) for point in known]
        if not self._simple or len(nodes) != 2:
            return exponential_weights(nodes, length, rate)
        whole, half = -math.expm1(-rate * length), rate * length / 2
        if nodes[0] == 0:
            return half, whole - half
        before = half * length / (nodes[1] - nodes[0])
        return whole - before, before


def exponential_weights(nodes: Sequence[float], length: float, rate: float) -> list[float]:
    """Return the w whose sum of w[k] f(nodes[k]) is rate * the integral of exp(rate u) f(u), -length < u < 0.

    Exact where f is a polynomial of a degree below the number of nodes (equations 15 and 18 of the paper);
    in float64, for powers of log-SNR tell little apart in float32.
    """
    decay = math.exp(-rate * length)
    moments = [-math.expm1(-rate * length)]
    for power in range(1, len(nodes)):
        moments.append(-((-length) ** power) * decay - power / rate * moments[-1])
    powers = torch.tensor(nodes, dtype=torch.float64) ** torch.arange(len(nodes)).unsqueeze(1)
    weights: list[float] = torch.linalg.solve(powers, torch.tensor(moments, dtype=torch.float64)).tolist()
    return weights
