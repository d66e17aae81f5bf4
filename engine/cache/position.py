"""Where in its schedule a call is: by its sigma, since samplers call the network as often as they like."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

#: Relative difference below which two sigmas are one: a sampler may recompute one by logarithm and power.
SAME = 1e-5


def position_of(sigma: float, sigmas: Sequence[float]) -> float | None:
    """The place of `sigma` among falling `sigmas`, a whole number on one of them, else between two.

    None outside. A second call at the next sigma (Heun) has the place of the next step's first call.
    """
    for number, level in enumerate(sigmas):
        if abs(sigma - level) <= SAME * max(abs(level), SAME):
            return float(number)
    for number, (above, below) in enumerate(pairwise(sigmas)):
        if below < sigma < above:
            return number + (above - sigma) / (above - below)
    return None
