"""Linear multistep: Adams-Bashforth over whatever sigmas there are."""

from __future__ import annotations

from torch import Tensor

from ...protocol.errors import UnsupportedRequestError
from .flow import Flow
from .noise import NoiseSource
from .polynomial import adams_weights
from .step import Callback, Denoiser, begin_step

_MAX_ORDER = 6
"""Above it the weights outgrow float32, and what ComfyUI draws is a matter of its rounding."""


def sample_lms(
    model: Denoiser,
    x: Tensor,
    sigmas: Tensor,
    *,
    callback: Callback,
    noise: NoiseSource,
    flow: Flow,
    order: int = 4,
) -> Tensor:
    """Integrate the polynomial through the last `order` slopes (x - x0) / sigma, one call a step.

    The Adams-Bashforth method over uneven steps (Hairer, Norsett & Wanner, Solving ODEs I, III.5), as in
    k-diffusion. A step to sigma 0 goes to x0. Raises `UnsupportedRequestError` unless `order` is 1 to 6.
    """
    if not 1 <= order <= _MAX_ORDER:
        raise UnsupportedRequestError(
            f"The order of lms must be 1 to {_MAX_ORDER}, not {order}.", hint="Choose 4."
        )
    times, slopes = sigmas.tolist(), list[Tensor]()
    for index in range(len(sigmas) - 1):
        x0 = begin_step(model, x, sigmas, index, callback)
        slopes = [(x - x0) / sigmas[index], *slopes][:order]
        if sigmas[index + 1] == 0:
            x = x0
            continue
        nodes = times[index::-1][: len(slopes)]
        for weight, slope in zip(adams_weights(nodes, *times[index : index + 2]), slopes, strict=True):
            x = x + weight * slope
    return x
