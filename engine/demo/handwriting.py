"""Real handwritten digits: scikit-learn's bundled UCI set, enlarged to smooth 32 x 32 pictures."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from .assets import PICTURE_SIZE

_HELD_OUT_SHARE = 0.2
_SPLIT_SEED = 1797


@dataclass(frozen=True)
class Handwriting:
    """`pictures` [N, 32, 32] fp32 in [0, 1], white ink on black; `digits` [N] int64."""

    pictures: Tensor
    digits: Tensor


def real_digits(*, held_out: bool) -> Handwriting:
    """The digits nothing was trained on (`held_out`), or all the others. Needs scikit-learn."""
    from sklearn.datasets import load_digits

    images, targets = load_digits(return_X_y=True)
    small = torch.as_tensor(images, dtype=torch.float32).reshape(-1, 8, 8) / 16
    digits = torch.as_tensor(targets, dtype=torch.int64)
    order = torch.randperm(len(digits), generator=torch.Generator().manual_seed(_SPLIT_SEED))
    cut = round(len(digits) * _HELD_OUT_SHARE)
    chosen = order[:cut] if held_out else order[cut:]
    return Handwriting(enlarge(small[chosen]), digits[chosen])


def typical(data: Handwriting, share: float) -> Handwriting:
    """The `share` of each digit's pictures that lie closest to that digit's mean: the common hands."""
    kept = []
    for digit in range(10):
        rows = (data.digits == digit).nonzero()[:, 0]
        pictures = data.pictures[rows]
        distance = (pictures - pictures.mean(0)).square().sum((1, 2))
        kept.append(rows[distance.argsort()[: round(len(rows) * share)]])
    chosen = torch.cat(kept)
    return Handwriting(data.pictures[chosen], data.digits[chosen])


def enlarge(small: Tensor) -> Tensor:
    """[N, 8, 8] in [0, 1] -> [N, 32, 32]: bicubic, then a soft threshold so that strokes have edges."""
    size = (PICTURE_SIZE, PICTURE_SIZE)
    smooth = F.interpolate(small[:, None], size, mode="bicubic", align_corners=False)[:, 0]
    ramp = ((smooth - 0.15) / 0.6).clamp(0, 1)
    return ramp * ramp * (3 - 2 * ramp)


def augment(pictures: Tensor, generator: torch.Generator, *, strength: float = 1.0) -> Tensor:
    """[N, 32, 32] -> the same, each turned, scaled, slanted and shifted a little; black outside."""
    count = len(pictures)
    wobble = (torch.rand(count, 5, generator=generator) * 2 - 1) * strength
    angle, scale = wobble[:, 0] * math.radians(9), 1 + wobble[:, 1] * 0.08
    slant, shift = wobble[:, 2] * 0.1, wobble[:, 3:] * 0.1
    cos, sin = angle.cos() * scale, angle.sin() * scale
    rows = [torch.stack((cos, slant - sin, shift[:, 0]), 1), torch.stack((sin, cos, shift[:, 1]), 1)]
    grid = F.affine_grid(torch.stack(rows, 1), [count, 1, PICTURE_SIZE, PICTURE_SIZE], align_corners=False)
    return F.grid_sample(pictures[:, None], grid, align_corners=False)[:, 0]
