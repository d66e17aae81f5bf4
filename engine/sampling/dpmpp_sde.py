"""SDE-DPM-Solver++ in single steps, its noise from a Brownian path."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from .ancestral import split_variance
from .brownian import BrownianNoise
from .flow import Flow
from .step import Callback, Denoiser, begin_step, predict


def sample_dpmpp_sde(
    model: Denoiser,
    x: Tensor,
    sigmas: Tensor,
    *,
    callback: Callback,
    noise: BrownianNoise,
    flow: Flow,
    eta: float = 1.0,
    s_noise: float = 1.0,
    r: float = 0.5,
) -> Tensor:
    """Single-step SDE-DPM-Solver++ (Lu et al. 2022, arXiv:2211.01095), two model calls a step.

    The second call is after `r` of a step in half-log-SNR. Each of the two moves is ancestral in sigma /
    alpha (see `split_variance`), and its noise is the path's from the step's start. A step to sigma 0 goes to
    x0.
    """
    sigmas, s_noise = flow.below_pure_noise(sigmas), s_noise * flow.noise_scale
    for index in range(len(sigmas) - 1):
        sigma, target = sigmas[index], sigmas[index + 1]
        x0 = begin_step(model, x, sigmas, index, callback)
        if target == 0:
            x = x0
            continue
        start, end = flow.half_log_snr(sigma), flow.half_log_snr(target)
        middle = start + r * (end - start)
        between = flow.sigma_at_half_log_snr(middle)
        move = _AncestralMove(x, sigma, start, noise, eta, s_noise)
        x0 = x0 + (predict(model, move.to(between, middle, x0), between) - x0) / (2 * r)
        x = move.to(target, end, x0)
    return x


@dataclass(frozen=True, eq=False)
class _AncestralMove:
    """A move from `x` at a sigma; `start` is its half-log-SNR."""

    x: Tensor
    sigma: Tensor
    start: Tensor
    noise: BrownianNoise
    eta: float
    s_noise: float

    def to(self, target: Tensor, end: Tensor, x0: Tensor) -> Tensor:
        """Return x at `target`, where half-log-SNR is `end`, when data is `x0` all the way.

        That the ratios come from the times and not from the sigmas shows in the pictures: `down` is what two
        nearly equal numbers leave.
        """
        ratio = (-self.start).exp()
        down, up = split_variance(ratio, (-end).exp(), self.eta)
        decay = down / ratio
        moved = decay * self.x / (1 - self.sigma) + (1 - decay) * x0
        if self.eta > 0 and self.s_noise > 0:
            moved = moved + self.noise.between(self.sigma, target) * (up * self.s_noise)
        return (1 - target) * moved
