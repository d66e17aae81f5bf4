"""Sinusoidal embedding of a scalar, as in Attention Is All You Need (https://arxiv.org/abs/1706.03762).

Timesteps stay in fp32 until they are embedded: in bf16 they would land up to 4 of 1000 steps away.
"""

from __future__ import annotations

import math
from contextlib import AbstractContextManager

import torch
from torch import nn

from .hooks import Inputs, changed_inputs


def sinusoid(
    value: torch.Tensor, width: int = 256, max_period: float = 10_000.0, scale: float = 1.0
) -> torch.Tensor:
    """(B,) to (B, width) = [cos, sin] of scale * (value * frequency), computed in fp32."""
    half = width // 2
    # This order of operations: angles reach thousands, where one rounding more is visible in the picture.
    exponent = -math.log(max_period) * torch.arange(half, dtype=torch.float32, device=value.device) / half
    angles = scale * (value.float()[:, None] * exponent.exp())
    return torch.cat([angles.cos(), angles.sin()], dim=-1)


def embedded_exactly(
    embedder: nn.Module, value: torch.Tensor, scale: float = 1.0
) -> AbstractContextManager[None]:
    """For one call, give `embedder` the sinusoid of `value` (B,) fp32 in place of a rounded one."""

    def exact(inputs: Inputs) -> Inputs:
        return (sinusoid(value, scale=scale).to(inputs[0].dtype), *inputs[1:])

    return changed_inputs(embedder, exact)
