"""Churn: raise the noise level a little before a step (Karras et al. 2022, arXiv:2206.00364, algorithm 2)."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from .noise import NoiseSource


@dataclass(frozen=True)
class Churn:
    """How much noise to add (`s_churn`, spread over the run), between which sigmas, and its deviation.

    `draws_always` is for a solver whose generator also moves on at the steps that do not churn.
    """

    s_churn: float
    s_tmin: float
    s_tmax: float
    s_noise: float
    draws_always: bool = False

    def apply(self, x: Tensor, sigma: Tensor, total: int, noise: NoiseSource) -> tuple[Tensor, Tensor]:
        """Return `x` and its sigma, both raised when this step of `total` churns, else unchanged."""
        if self.s_churn <= 0:
            return x, sigma
        if not self.s_tmin <= float(sigma) <= self.s_tmax:
            if self.draws_always:
                noise.churn()
            return x, sigma
        gamma = min(self.s_churn / total, math.sqrt(2) - 1)
        raised = sigma * (gamma + 1)
        eps = noise.churn() * self.s_noise
        return x + eps * (raised**2 - sigma**2) ** 0.5, raised
