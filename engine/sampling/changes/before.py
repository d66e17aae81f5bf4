"""Changes to the two predictions before they are combined."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from ....protocol.messages.base import Record
from ....protocol.messages.guidance import Apg, Fresca, Tcfg
from .moment import Before, Moment, chosen

VOLUME = (-1, -2, -3)
"""The dimensions adaptive projected guidance measures: a picture with its channels, a video without them."""


def tcfg(_: Tcfg, moment: Moment) -> Moment:
    """Project the negative's noise on the main direction of the two, row by row (arXiv:2503.18137)."""
    if not moment.whole:
        return moment
    noises = [(moment.x - x0).flatten(1).float() for x0 in (moment.negative, moment.positive)]
    direction = _main_direction(torch.stack(noises, dim=1)).to(moment.x.device)
    along = (noises[0] * direction).sum(1, keepdim=True) * direction
    return replace(moment, negative=moment.x - along.reshape_as(moment.x).to(moment.x.dtype))


def fresca(change: Fresca, moment: Moment) -> Moment:
    """Scale the guidance apart by spatial frequency (arXiv:2504.02154); below `cutoff` it is low."""
    if not moment.whole:
        return moment
    guidance = moment.positive - moment.negative
    spectrum = torch.fft.fftshift(torch.fft.fftn(guidance.float(), dim=(-2, -1)), dim=(-2, -1))
    factors = torch.full(spectrum.shape[-2:], change.scale_high, device=spectrum.device)
    low = factors
    for dim, length in enumerate(factors.shape):
        width = min(change.cutoff, length // 2)
        low = low.narrow(dim, length // 2 - width, 2 * width)
    low.fill_(change.scale_low)
    shifted = torch.fft.ifftshift(spectrum * factors, dim=(-2, -1))
    filtered = torch.fft.ifftn(shifted, dim=(-2, -1)).real.to(guidance.dtype)
    return replace(moment, positive=filtered + moment.negative)


class AdaptiveProjection:
    """Adaptive projected guidance (Sadat et al. 2024, arXiv:2410.02416), with its running average.

    The average starts anew where sigma rises: that is another run.
    """

    def __init__(self, change: Apg) -> None:
        self.change = change
        self.average: Tensor | None = None
        self.sigma = None if change.state.sigma is None else torch.tensor(change.state.sigma)

    @property
    def remembers(self) -> bool:
        return self.change.momentum != 0

    def __call__(self, moment: Moment) -> Moment:
        """Return the moment with a positive that plain guidance turns into the projected one."""
        plain = moment.positive - moment.negative
        guidance = self._limited(self._averaged(plain, moment.sigma))
        direction = functional.normalize(moment.positive, dim=VOLUME)  # type: ignore[arg-type]
        along = (guidance * direction).sum(VOLUME, keepdim=True) * direction
        turned = guidance - along + self.change.eta * along
        return replace(moment, positive=moment.negative + turned + plain / moment.scale)

    def _averaged(self, guidance: Tensor, sigma: Tensor) -> Tensor:
        if self.sigma is not None and bool(sigma > self.sigma):
            self.average = None
        self.sigma = sigma
        if not self.remembers:
            return guidance
        carried = guidance if self.average is None else self.change.momentum * self.average + guidance
        self.average = carried
        return carried

    def _limited(self, guidance: Tensor) -> Tensor:
        threshold = self.change.norm_threshold
        if threshold <= 0:
            return guidance
        length = guidance.norm(p=2, dim=VOLUME, keepdim=True)
        factor: Tensor = (threshold / length).clamp(max=1.0)
        return guidance * factor


FUNCTIONS: Mapping[type[Record], Callable[..., Any]] = {Tcfg: tcfg, Fresca: fresca}


def before_of(change: Record) -> Before | None:
    """Return what `change` does before the combination; None when it does something else."""
    return AdaptiveProjection(change) if isinstance(change, Apg) else chosen(FUNCTIONS, change)


def _main_direction(rows: Tensor) -> Tensor:
    """The first right singular vector of each [2, N] of `rows` [B, 2, N]; on the CPU where a GPU gives up."""
    try:
        found = torch.linalg.svd(rows, full_matrices=False)
    except RuntimeError:
        found = torch.linalg.svd(rows.cpu(), full_matrices=False)
    direction: Tensor = found.Vh[:, 0]
    return direction
