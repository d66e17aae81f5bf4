"""Noise that belongs to a Brownian path: the same seed gives the same path, whatever the steps through it."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

import torch
from torch import Tensor

from .noise import NoiseSource, require_device

_DIGITS, _TOLERANCE = 6, 1e-6
"""The tree tells sigmas apart to six digits behind the point."""


class BrownianNoise(NoiseSource):
    """The noise between two sigmas: a Brownian path's increment, scaled to a standard deviation of 1.

    The path runs from the smallest of `sigmas` above 0 to the largest, in a tree of which each node has its
    own generator (torchsde's BrownianTree; Li et al. 2020, arXiv:2001.01328). `seed`, `like` and `device`
    are those of `NoiseSource`: the generators are of the kind of `device`, and the seed is used as it is.
    Raises `UnsupportedRequestError` at the first draw when this machine lacks that kind of device.
    """

    def __init__(self, seed: int, like: Tensor, sigmas: Tensor, device: str = "") -> None:
        super().__init__(seed, like, device)
        self._sigmas = sigmas

    def between(self, sigma: Tensor, target: Tensor) -> Tensor:
        """Return the noise of a step from `sigma` down to `target`, shaped and placed like `like`."""
        low, high = (round(end, _DIGITS) for end in self._ends)
        below, above = (min(max(float(end), low), high) for end in (target, sigma))
        return -self._tree(below, above).to(self._like.device) / (sigma - target).sqrt()

    @cached_property
    def _ends(self) -> tuple[float, float]:
        return float(self._sigmas[self._sigmas > 0].min()), float(self._sigmas.max())

    @cached_property
    def _tree(self) -> Callable[[float, float], Tensor]:
        # torchsde brings scipy, which no other sampler should wait for.
        import torchsde

        require_device(self._device)
        (low, high), start = self._ends, torch.zeros_like(self._like, device=self._device)
        tree: Callable[[float, float], Tensor] = torchsde.BrownianTree(
            low, start, high, entropy=self._seed, tol=_TOLERANCE
        )
        return tree
