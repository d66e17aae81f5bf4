"""The rectified-flow noise model: x = sigma * noise + (1 - sigma) * latent; the network predicts velocity."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Flow:
    """What a flow model (ComfyUI's CONST prediction) needs besides its sigmas.

    `multiplier` turns a sigma into the timestep the network was trained on; `noise_scale` is the
    standard deviation of the noise it was trained on. Source: Liu et al. 2022, arXiv:2209.03003.
    Sigmas are scalars or one per row; latents are [B, C, ...].
    """

    multiplier: float
    noise_scale: float = 1.0

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


def _per_row(sigma: Tensor, like: Tensor) -> Tensor:
    if sigma.numel() == 1:
        return sigma.reshape(())
    return sigma.reshape(-1, *[1] * (like.ndim - 1))
