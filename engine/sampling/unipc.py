"""UniPC: a multistep predictor whose every model call also corrects the step that led to it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ...protocol.errors import UnsupportedRequestError
from .flow import Flow
from .noise import NoiseSource
from .step import Callback, Denoiser, Step, predict

LAST_SIGMA = 0.001
"""UniPC works in log-SNR, which sigma 0 does not have: a schedule's final 0 becomes this."""


@dataclass(frozen=True)
class _Level:
    """A noise level in the variance-preserving form UniPC is written in: x = alpha * x0 + std * noise.

    Every quantity goes through log(alpha) in float32, as in the authors' code: near `LAST_SIGMA` the
    rounding shows.
    """

    sigma: Tensor

    @property
    def log_alpha(self) -> Tensor:
        return 0.5 * torch.log(1 / (self.sigma * self.sigma + 1))

    @property
    def alpha(self) -> Tensor:
        return torch.exp(self.log_alpha)

    @property
    def std(self) -> Tensor:
        return torch.sqrt(1.0 - torch.exp(2.0 * self.log_alpha))

    @property
    def half_log_snr(self) -> Tensor:
        return self.log_alpha - 0.5 * torch.log(1.0 - torch.exp(2.0 * self.log_alpha))


@dataclass(frozen=True, eq=False)
class _Known:
    """A level the model was called at, and the x0 it gave there."""

    level: _Level
    x0: Tensor


class _Move:
    """One move from the newest of `known` to `target`, of order len(known), by the paper's B(h) solver."""

    def __init__(self, x: Tensor, known: Sequence[_Known], target: _Level, variant: str) -> None:
        last = known[-1]
        start = last.level.half_log_snr
        length = target.half_log_snr - start
        self._x0 = last.x0
        ratios = [(point.level.half_log_snr - start) / length for point in reversed(known[:-1])]
        self._slopes = [(k.x0 - last.x0) / r for k, r in zip(reversed(known[:-1]), ratios, strict=True)]
        step = torch.expm1(-length)
        self._scale = target.alpha * (-length if variant == "bh1" else step)
        self._system = _system(ratios, -length, variant)
        self._first_order = target.std / last.level.std * x - target.alpha * step * last.x0

    def predicted(self) -> Tensor:
        """Return x at the target from what is known so far."""
        if not self._slopes:
            return self._first_order
        matrix, vector = self._system
        weights = _solve(matrix[:-1, :-1], vector[:-1])
        return self._first_order - self._scale * _combine(weights, self._slopes)

    def corrected(self, x0: Tensor) -> Tensor:
        """Return x at the target, now that the model gave `x0` there."""
        slopes = [*self._slopes, x0 - self._x0]
        return self._first_order - self._scale * _combine(_solve(*self._system), slopes)


def sample_uni_pc(
    model: Denoiser,
    x: Tensor,
    sigmas: Tensor,
    *,
    callback: Callback,
    noise: NoiseSource,
    flow: Flow,
    variant: str = "bh1",
) -> Tensor:
    """UniPC of order 3 at most, data prediction (Zhao et al. 2023, arXiv:2302.04867), one call a step.

    `sigmas` must end above 0 (`LAST_SIGMA`); `variant` is the paper's B(h): "bh1" is h, "bh2" is exp(h) - 1.
    A single step calls the model and moves nowhere, as in ComfyUI. Raises `UnsupportedRequestError` for
    another variant.
    """
    if variant not in ("bh1", "bh2"):
        raise UnsupportedRequestError(f"uni_pc has no variant {variant!r}.", hint="Choose bh1 or bh2.")
    levels, total = [_Level(sigma) for sigma in sigmas], len(sigmas) - 1
    order = min(3, total - 1)
    x = x / torch.sqrt(1.0 + sigmas[0] ** 2.0)
    known: list[_Known] = []
    for index in range(total):
        if known:
            move = _Move(x, known[-min(order, total + 1 - index) :], levels[index], variant)
            x = move.predicted()
        newest = _Known(levels[index], _data(model, x, levels[index]))
        if known:
            x = move.corrected(newest.x0)
        known = [*known, newest][-3:]
        if index and index == total - 1:
            x = _Move(x, known[-1:], levels[-1], variant).predicted()
        callback(Step(index, total, float(sigmas[index]), x, newest.x0))
    return x / levels[-1].alpha


def sample_uni_pc_bh2(
    model: Denoiser, x: Tensor, sigmas: Tensor, *, callback: Callback, noise: NoiseSource, flow: Flow
) -> Tensor:
    """UniPC with B(h) = exp(h) - 1."""
    return sample_uni_pc(model, x, sigmas, callback=callback, noise=noise, flow=flow, variant="bh2")


def _data(model: Denoiser, x: Tensor, level: _Level) -> Tensor:
    """Return x0 at the variance-preserving `x`, by way of the noise, as the authors' code rounds."""
    exploding = x * (level.sigma**2 + 1.0) ** 0.5
    eps = (exploding - predict(model, exploding, level.sigma)) / level.sigma
    return (x - level.std * eps) / level.alpha


def _system(ratios: Sequence[Tensor], h: Tensor, variant: str) -> tuple[Tensor, Tensor]:
    """Return the corrector's order conditions R, b: nodes `ratios` and 1, negated log-SNR length `h`."""
    nodes = torch.tensor([*ratios, 1.0])
    scale = h if variant == "bh1" else torch.expm1(h)
    phi, factorial, vector = torch.expm1(h) / h - 1, 1, []
    for row in range(1, len(nodes) + 1):
        vector.append(phi * factorial / scale)
        factorial *= row + 1
        phi = phi / h - 1 / factorial
    return torch.stack([nodes**power for power in range(len(nodes))]), torch.tensor(vector)


def _solve(matrix: Tensor, vector: Tensor) -> Tensor:
    """Solve the order conditions; a single unknown takes the paper's limit 1/2, which keeps the order."""
    if len(vector) == 1:
        return torch.tensor([0.5])
    solution: Tensor = torch.linalg.solve(matrix, vector)
    return solution


def _combine(weights: Tensor, slopes: Sequence[Tensor]) -> Tensor:
    total = weights[0] * slopes[0]
    for weight, slope in zip(weights[1:], slopes[1:], strict=True):
        total = total + weight * slope
    return total
