"""Ways to combine two predictions other than plain guidance."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from ....protocol.messages.base import Record
from ....protocol.messages.guidance import NormCfg, RenormCfg, RescaleCfg, VideoCfg
from ..branch import Side
from .moment import Combine, Moment, chosen, row_dims


def rescale_cfg(change: RescaleCfg, moment: Moment) -> Tensor:
    """Bring the guided x0 to the spread of the positive one (Lin et al. 2023, arXiv:2305.08891, 3.4)."""
    guided, dims = moment.guided, row_dims(moment.x)
    wanted = moment.positive.std(dim=dims, keepdim=True)
    spread = guided.std(dim=dims, keepdim=True).clamp(min=1e-8)
    return change.multiplier * (guided * (wanted / spread)) + (1.0 - change.multiplier) * guided


def norm_cfg(change: NormCfg, moment: Moment) -> Tensor:
    """Bring each pixel of the guided noise to the length it has in the positive's, across the channels."""
    positive, negative = moment.x - moment.positive, moment.x - moment.negative
    guided = negative + moment.scale * (positive - negative)
    wanted = torch.linalg.vector_norm(positive, dim=1, keepdim=True)
    length = torch.linalg.vector_norm(guided, dim=1, keepdim=True)
    factor = torch.where(length > 0, wanted / length.clamp_min(1e-12), torch.ones_like(length))
    return moment.x - (change.strength * (guided * factor) + (1.0 - change.strength) * guided)


def renorm_cfg(change: RenormCfg, moment: Moment) -> Tensor:
    """Guide only below sigma `truncation`, and limit the length of a row to `limit` times the positive's.

    Channels from `channels` on are the positive's. Source: Lumina-Image 2.0, arXiv:2503.21758.
    """
    if not bool(moment.sigma < change.truncation):
        return moment.positive
    guided = moment.guided[:, : change.channels]
    if change.limit > 0:
        positive, dims = moment.positive[:, : change.channels], row_dims(moment.x)
        most = torch.linalg.vector_norm(positive, dim=dims, keepdim=True) * change.limit
        length = torch.linalg.vector_norm(guided, dim=dims, keepdim=True)
        guided = torch.where(length >= most, guided * (most / length), guided)
    return torch.cat([guided, moment.positive[:, change.channels :]], dim=1)


def video_cfg(change: VideoCfg, moment: Moment) -> Tensor:
    """Give each row, a frame of a video made as pictures, a scale of its own."""
    rows = len(moment.x)
    place = torch.linspace(0, 1, rows, device=moment.x.device)
    if change.shape == "triangle":
        place = 2 * (place - torch.floor(place + 0.5)).abs()
    scale = (change.min_scale + (moment.scale - change.min_scale) * place).reshape(rows, 1, 1, 1)
    return moment.negative + scale * (moment.positive - moment.negative)


def perp_neg_cfg(empty: Side, negative_scale: float, moment: Moment) -> Tensor:
    """Guide by `perpendicular` with an empty conditioning that is predicted here."""
    nothing = moment.predict(empty)
    return perpendicular(moment.positive, moment.negative, nothing, moment.scale, negative_scale)


def perpendicular(
    positive: Tensor, negative: Tensor, empty: Tensor, scale: float, negative_scale: float
) -> Tensor:
    """Return x0 guided by the negative's part perpendicular to the positive (arXiv:2304.04968).

    Like ComfyUI it projects the whole batch at once.
    """
    towards, away = positive - empty, negative - empty
    share: Tensor = (away * towards).sum() / torch.linalg.vector_norm(towards) ** 2
    across = away - share * towards
    return empty + scale * (towards - across * negative_scale)


FUNCTIONS: Mapping[type[Record], Callable[..., Any]] = {
    RescaleCfg: rescale_cfg,
    NormCfg: norm_cfg,
    RenormCfg: renorm_cfg,
    VideoCfg: video_cfg,
}


def combine_of(change: Record) -> Combine | None:
    """Return how `change` combines; None when it does something else."""
    return chosen(FUNCTIONS, change)
