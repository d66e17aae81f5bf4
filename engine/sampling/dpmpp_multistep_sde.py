"""SDE-DPM-Solver++ of two and three steps: past predictions of x0, and noise from a Brownian path."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from ...protocol.errors import InvalidRequestError
from .brownian import BrownianNoise
from .flow import Flow
from .step import Callback, Denoiser, begin_step


def sample_dpmpp_2m_sde(
    model: Denoiser,
    x: Tensor,
    sigmas: Tensor,
    *,
    callback: Callback,
    noise: BrownianNoise,
    flow: Flow,
    eta: float = 1.0,
    s_noise: float = 1.0,
    solver_type: str = "midpoint",
) -> Tensor:
    """Multistep SDE-DPM-Solver++ of order 2 (Lu et al. 2022, arXiv:2211.01095, section 5), one call a step.

    `solver_type` says how x0's change enters: "midpoint" takes its value half-way, "heun" integrates it;
    `eta` how much noise does (0: an ODE). A step to sigma 0 goes to x0.
    Raises `InvalidRequestError` for another solver type.
    """
    if solver_type not in ("midpoint", "heun"):
        raise InvalidRequestError(f"solver_type must be midpoint or heun, not {solver_type!r}.")
    sigmas, s_noise = flow.below_pure_noise(sigmas), s_noise * flow.noise_scale
    x0s, lengths = list[Tensor](), list[Tensor]()
    for index in range(len(sigmas) - 1):
        x0s = [begin_step(model, x, sigmas, index, callback), *x0s][:2]
        if sigmas[index + 1] == 0:
            x = x0s[0]
            continue
        move = _Move(sigmas[index], sigmas[index + 1], flow, eta)
        data = move.phi_1 * x0s[0]
        if lengths:
            weight = move.phi_1 / 2 if solver_type == "midpoint" else move.phi_2
            data = data + weight * (move.length / lengths[0]) * (x0s[0] - x0s[1])
        x = move.to(x, data, noise, s_noise)
        lengths = [move.length]
    return x


def sample_dpmpp_2m_sde_heun(
    model: Denoiser,
    x: Tensor,
    sigmas: Tensor,
    *,
    callback: Callback,
    noise: BrownianNoise,
    flow: Flow,
    eta: float = 1.0,
    s_noise: float = 1.0,
    solver_type: str = "heun",
) -> Tensor:
    """`sample_dpmpp_2m_sde` with the other solver type for its default."""
    return sample_dpmpp_2m_sde(
        model,
        x,
        sigmas,
        callback=callback,
        noise=noise,
        flow=flow,
        eta=eta,
        s_noise=s_noise,
        solver_type=solver_type,
    )


def sample_dpmpp_3m_sde(
    model: Denoiser,
    x: Tensor,
    sigmas: Tensor,
    *,
    callback: Callback,
    noise: BrownianNoise,
    flow: Flow,
    eta: float = 1.0,
    s_noise: float = 1.0,
) -> Tensor:
    """Multistep SDE-DPM-Solver++ of order 3, after k-diffusion's sampler of this name, one call a step.

    The order-2 "heun" method with a parabola through the last three predictions of x0, where there are three.
    """
    sigmas, s_noise = flow.below_pure_noise(sigmas), s_noise * flow.noise_scale
    x0s, lengths = list[Tensor](), list[Tensor]()
    for index in range(len(sigmas) - 1):
        x0s = [begin_step(model, x, sigmas, index, callback), *x0s][:3]
        if sigmas[index + 1] == 0:
            x = x0s[0]
            continue
        move = _Move(sigmas[index], sigmas[index + 1], flow, eta)
        data = move.phi_1 * x0s[0]
        if lengths:
            first, second = _derivatives(x0s, [length / move.length for length in lengths])
            data = data + move.phi_2 * first - move.phi_3 * second
        x = move.to(x, data, noise, s_noise)
        lengths = [move.length, *lengths][:2]
    return x


@dataclass(frozen=True)
class _Move:
    """A step in half-log-SNR, and the functions phi that weigh x0 and its derivatives over it."""

    sigma: Tensor
    target: Tensor
    flow: Flow
    eta: float

    @property
    def length(self) -> Tensor:
        return self.flow.half_log_snr(self.target) - self.flow.half_log_snr(self.sigma)

    @property
    def phi_1(self) -> Tensor:
        return -(-self.length * (self.eta + 1)).expm1()

    @property
    def phi_2(self) -> Tensor:
        return 1 - self.phi_1 / (self.length * (self.eta + 1))

    @property
    def phi_3(self) -> Tensor:
        return self.phi_2 / (self.length * (self.eta + 1)) - 0.5

    def to(self, x: Tensor, data: Tensor, noise: BrownianNoise, s_noise: float) -> Tensor:
        """Return x at the target, with the weighed `data` and the noise that enters on the way."""
        x = self.target / self.sigma * (-self.length * self.eta).exp() * x + (1 - self.target) * data
        if self.eta > 0 and s_noise > 0:
            deviation = self.target * (-(-2 * self.length * self.eta).expm1()).sqrt()
            x = x + noise.between(self.sigma, self.target) * (deviation * s_noise)
        return x


def _derivatives(x0s: list[Tensor], ratios: list[Tensor]) -> tuple[Tensor, Tensor | float]:
    """Return x0's first and second derivative over a step, past ones being `ratios` as long, newest first."""
    change = (x0s[0] - x0s[1]) / ratios[0]
    if len(ratios) == 1:
        return change, 0.0
    second = (change - (x0s[1] - x0s[2]) / ratios[1]) / (ratios[0] + ratios[1])
    return change + second * ratios[0], second
