"""Ancestral steps: below the next sigma, then back up with fresh noise (Song et al., arXiv:2011.13456)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


def split_variance(sigma: Tensor, target: Tensor, eta: float) -> tuple[Tensor, Tensor]:
    """Return `down` and `up` with down^2 + up^2 = target^2: where to step to, and the noise to add there.

    For x = x0 + sigma * noise. `up` is `eta` times the deviation of the posterior given x and x0, at most
    `target`; 0 makes the step deterministic.
    """
    if not eta:
        return target, torch.zeros_like(target)
    posterior = (target**2 * (sigma**2 - target**2) / sigma**2) ** 0.5
    up = torch.minimum(target, eta * posterior)
    return (target**2 - up**2) ** 0.5, up


@dataclass(frozen=True)
class FlowRenoise:
    """An ancestral step on the path x = sigma * noise + (1 - sigma) * x0: solve to `down`, then `apply`.

    `keep` brings the signal at `down` to its level at the target sigma, `added` is the deviation of the fresh
    noise that brings the noise there.
    """

    down: Tensor
    keep: Tensor
    added: Tensor

    @classmethod
    def between(cls, sigma: Tensor, target: Tensor, eta: float) -> FlowRenoise:
        """Return the step from `sigma` to `target`; `eta` says how far below it goes (0: not at all)."""
        down = target * (1 + (target / sigma - 1) * eta)
        keep = (1 - target) / (1 - down)
        added = (target**2 - down**2 * (1 - target) ** 2 / (1 - down) ** 2) ** 0.5
        return cls(down, keep, added)

    def apply(self, x: Tensor, noise: Tensor) -> Tensor:
        """Return `x`, at `down`, at the target sigma: `noise` is standard normal but for its scale."""
        return self.keep * x + noise * self.added
