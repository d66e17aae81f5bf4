"""Sinusoidal embedding of a scalar, as in Attention Is All You Need (https://arxiv.org/abs/1706.03762)."""

from __future__ import annotations

import math

import torch


def sinusoid(value: torch.Tensor, width: int = 256, max_period: float = 10_000.0) -> torch.Tensor:
    """(B,) to (B, width) = [cos, sin], computed in fp32."""
    half = width // 2
    # This order of operations: angles reach thousands, where one rounding more is visible in the picture.
    exponent = -math.log(max_period) * torch.arange(half, dtype=torch.float32, device=value.device) / half
    angles = value.float()[:, None] * exponent.exp()
    return torch.cat([angles.cos(), angles.sin()], dim=-1)
