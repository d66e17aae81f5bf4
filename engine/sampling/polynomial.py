"""Polynomials through past values: what multistep solvers integrate instead of the unknown function."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from numpy.polynomial.legendre import leggauss
from torch import Tensor


def lagrange(nodes: Sequence[float] | Tensor, which: int, at: Tensor) -> Tensor:
    """Return, at the points `at`, the polynomial that is 1 at `nodes[which]` and 0 at the other nodes."""
    value = torch.ones_like(at)
    for other, node in enumerate(nodes):
        if other != which:
            value = value * ((at - node) / (nodes[which] - node))
    return value


def adams_weights(nodes: Sequence[float], start: float, end: float) -> list[float]:
    """Return the weights w whose sum of w[k] * f(nodes[k]) integrates f's interpolant from `start` to `end`.

    By Gauss-Legendre quadrature in float64, which is exact for the interpolant's degree.
    """
    points, weights = (torch.from_numpy(array) for array in leggauss(len(nodes) // 2 + 1))
    half = (end - start) / 2
    at = start + half * (points + 1)
    return [half * float((weights * lagrange(nodes, which, at)).sum()) for which in range(len(nodes))]
