"""iPNDM: Adams-Bashforth on slopes, with the low orders as its start."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor

from ...protocol.errors import UnsupportedRequestError
from .flow import Flow
from .noise import NoiseSource
from .step import Callback, Denoiser, begin_step

_EVEN = (
    (1.0,),
    (3 / 2, -1 / 2),
    (23 / 12, -16 / 12, 5 / 12),
    (55 / 24, -59 / 24, 37 / 24, -9 / 24),
)
"""The Adams-Bashforth weights of orders 1 to 4 for equal steps, newest slope first."""

MAX_ORDER = len(_EVEN)

Weights = Callable[[Sequence[Tensor]], Sequence[float | Tensor]]
"""The slopes' weights from the lengths of the steps, this one's first and as many as there are slopes."""


def sample_ipndm(
    model: Denoiser,
    x: Tensor,
    sigmas: Tensor,
    *,
    callback: Callback,
    noise: NoiseSource,
    flow: Flow,
    max_order: int = 4,
) -> Tensor:
    """Improved PNDM (Zhang & Chen 2022, arXiv:2204.13902, section 4; Liu et al. 2022, arXiv:2202.09778).

    Weighs the slopes as if all steps were equally long; one call a step, and a step to sigma 0 goes to x0.
    Raises `UnsupportedRequestError` unless `max_order` is 1 to 4.
    """
    return _sampled(model, x, sigmas, callback, max_order, lambda lengths: _EVEN[len(lengths) - 1])


def sample_ipndm_v(
    model: Denoiser,
    x: Tensor,
    sigmas: Tensor,
    *,
    callback: Callback,
    noise: NoiseSource,
    flow: Flow,
    max_order: int = 4,
) -> Tensor:
    """iPNDM whose weights follow the lengths of the steps, after the diff-sampler toolbox (see `_uneven`).

    One call a step, and a step to sigma 0 goes to x0. Raises `UnsupportedRequestError` unless `max_order`
    is 1 to 4.
    """
    return _sampled(model, x, sigmas, callback, max_order, _uneven)


def _sampled(
    model: Denoiser, x: Tensor, sigmas: Tensor, callback: Callback, max_order: int, weights: Weights
) -> Tensor:
    check_order(max_order)
    slopes: list[Tensor] = []
    for index in range(len(sigmas) - 1):
        x0 = begin_step(model, x, sigmas, index, callback)
        if sigmas[index + 1] == 0:
            x = x0
            continue
        slopes = [(x - x0) / sigmas[index], *slopes][:max_order]
        lengths = [sigmas[index - k + 1] - sigmas[index - k] for k in range(len(slopes))]
        mean = sum(weight * slope for weight, slope in zip(weights(lengths), slopes, strict=True))
        x = x + lengths[0] * mean
    return x


def check_order(max_order: int) -> None:
    """Raise `UnsupportedRequestError` unless `max_order` is one the diff-sampler solvers have."""
    if not 1 <= max_order <= MAX_ORDER:
        raise UnsupportedRequestError(
            f"max_order must be 1 to {MAX_ORDER}, not {max_order}.", hint="Choose 3 or 4."
        )


def _uneven(lengths: Sequence[Tensor]) -> Sequence[float | Tensor]:
    """Return the weights in Newton form: each order adds a multiple of the next difference of slopes.

    They are the toolbox's, not quite Adams-Bashforth's: the third order's factor is right for equal steps
    only, the fourth's not even there, and in its difference the oldest slope weighs by another ratio.
    """
    weights: list[float | Tensor] = [1.0]
    if len(lengths) >= 2:
        h, h1 = lengths[:2]
        second = h / h1 / 2
        weights = _added(weights, second, (1.0, -1.0))
    if len(lengths) >= 3:
        h2 = lengths[2]
        ratio = h1 / h2
        third = (1 - h / (3 * (h + h1)) * (h * (h + h1)) / (h1 * (h1 + h2))) / 2
        weights = _added(weights, third, (1.0, -1 - ratio, ratio))
    if len(lengths) >= 4:
        h3 = lengths[3]
        spread = h1 * (h1 + h2) / (h2 * (h2 + h3))
        mean = (1 - h / (3 * (h + h1))) / 2 + (1 - h / (2 * (h + h1))) * h / (6 * (h + h1 + h2))
        fourth = mean * (h * (h + h1) * (h + h1 + h2)) / (h1 * (h1 + h2) * (h1 + h2 + h3))
        difference = (1.0, -1 - ratio - spread, ratio + spread * (1 + h2 / h3), -spread * ratio)
        weights = _added(weights, fourth, difference)
    return weights


def _added(
    weights: Sequence[float | Tensor], factor: Tensor, difference: Sequence[float | Tensor]
) -> list[float | Tensor]:
    padded = [*weights, 0.0]
    return [weight + factor * part for weight, part in zip(padded, difference, strict=True)]
