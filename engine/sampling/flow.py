"""The rectified-flow noise model: x = sigma * noise + (1 - sigma) * latent; the network predicts velocity."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Flow:
    """What a flow model (ComfyUI's CONST prediction) needs besides its sigmas.

    `multiplier` turns a sigma into the timestep the network was trained on; `noise_scale` is the
    standard deviation of the noise it was trained on; `shift` is how its schedule is shifted towards noise
    (see `sigma_at`). Source: Liu et al. 2022, arXiv:2209.03003.
    Sigmas are scalars or one per row; latents are [B, C, ...].
    """

    multiplier: float
    noise_scale: float = 1.0
    shift: float = 1.0

    def timestep(self, sigma: Tensor) -> Tensor:
        """Return the network's timestep for `sigma`, of the same shape."""
        return sigma * self.multiplier

    def denoised(self, x: Tensor, v: Tensor, sigma: Tensor) -> Tensor:
        """Return x0 from the velocity `v` predicted at `x`."""
        return x - v * _per_row(sigma, x)

    def noise_scaling(self, sigma: Tensor, noise: Tensor, latent: Tensor) -> Tensor:
        """Return `latent` noised to level `sigma`."""
        sigma = _per_row(sigma, noise)
        return sigma * (self.noise_scale * noise) + (1.0 - sigma) * latent

    def inverse_noise_scaling(self, sigma: Tensor, x: Tensor) -> Tensor:
        """Return the latent in `x`, a run that stopped at level `sigma` < 1; at 0 this is `x` itself."""
        return x / (1.0 - _per_row(sigma, x))

    def sigma_at(self, fraction: float) -> float:
        """Return the sigma after `fraction` of the model's own schedule, 0 being pure noise and 1 the end.

        With u = 1 - fraction it is shift * u / (1 + (shift - 1) * u) (Esser et al. 2024, arXiv:2403.03206).
        """
        if fraction <= 0.0:
            return 1.0
        left = max(1.0 - fraction, 0.0)
        return self.shift * left / (1 + (self.shift - 1) * left)

    def half_log_snr(self, sigma: Tensor) -> Tensor:
        """Return log((1 - sigma) / sigma), the time in which exponential integrators step; infinite at 1."""
        return -sigma.logit()

    def sigma_at_half_log_snr(self, value: Tensor) -> Tensor:
        """Return the sigma whose `half_log_snr` is `value`."""
        return (-value).sigmoid()

    def below_pure_noise(self, sigmas: Tensor) -> Tensor:
        """Return `sigmas` with a first one of 1, which has no log-SNR, moved just below it, as in ComfyUI."""
        if len(sigmas) < 2 or sigmas[0] < 1:
            return sigmas
        return torch.cat([sigmas.new_tensor([self.sigma_at(1e-4)]), sigmas[1:]])


def _per_row(sigma: Tensor, like: Tensor) -> Tensor:
    if sigma.numel() == 1:
        return sigma.reshape(())
    return sigma.reshape(-1, *[1] * (like.ndim - 1))
