"""DPM-Solver: exponential integrators of the noise prediction, of orders 1 to 3, in time -log(sigma)."""

from __future__ import annotations

from torch import Tensor

from .step import Denoiser, predict


def time_of(sigma: Tensor) -> Tensor:
    """Return -log(sigma)."""
    return -sigma.log()


def sigma_of(time: Tensor) -> Tensor:
    """Return the sigma of `time`."""
    return (-time).exp()


def time_span(sigmas: Tensor) -> tuple[Tensor, Tensor]:
    """Return the times of a schedule's first sigma and of its last one above 0, the last that has a time."""
    last = sigmas[-1] if sigmas[-1] != 0 else sigmas[-2]
    return time_of(sigmas[0]), time_of(last)


class Departure:
    """The steps one can take from `x` at `time` (Lu et al. 2022, arXiv:2206.00927, algorithms 1, 4 and 5).

    All end at the time `end`. What the model said at a point between serves every step that needs it.
    """

    def __init__(self, model: Denoiser, x: Tensor, time: Tensor, end: Tensor) -> None:
        self._model, self._x, self._time, self._end = model, x, time, end
        self._length = end - time
        self._eps = self._predicted(x, time)
        self._changes: dict[float, Tensor] = {}

    @property
    def x0(self) -> Tensor:
        """The x0 predicted at the departure."""
        return self._x - sigma_of(self._time) * self._eps

    def first(self) -> Tensor:
        """Return x after a step of order 1: no call."""
        return self._straight(self._length, self._end)

    def second(self, node: float = 1 / 2) -> Tensor:
        """Return x after a step of order 2: a call after `node` of the way."""
        weight = sigma_of(self._end) / (2 * node) * self._length.expm1()
        return self.first() - weight * self._change(node)

    def third(self, node: float = 1 / 3, later: float = 2 / 3) -> Tensor:
        """Return x after a step of order 3: calls after `node` and after `later` of the way."""
        part = later * self._length
        weight = sigma_of(self._time + part) * (later / node) * (part.expm1() / part - 1)
        middle = self._straight(part, self._time + part) - weight * self._change(node)
        change = self._predicted(middle, self._time + part) - self._eps
        weight = sigma_of(self._end) / later * (self._length.expm1() / self._length - 1)
        return self.first() - weight * change

    def _straight(self, length: Tensor, end: Tensor) -> Tensor:
        return self._x - sigma_of(end) * length.expm1() * self._eps

    def _change(self, node: float) -> Tensor:
        if node not in self._changes:
            part = node * self._length
            between = self._straight(part, self._time + part)
            self._changes[node] = self._predicted(between, self._time + part) - self._eps
        return self._changes[node]

    def _predicted(self, x: Tensor, time: Tensor) -> Tensor:
        sigma = sigma_of(time)
        return (x - predict(self._model, x, sigma)) / sigma
