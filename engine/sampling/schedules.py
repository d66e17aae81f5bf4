"""Sigma schedules for runs the engine starts by itself; ComfyUI sends its own."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def discrete_flow_table(shift: float, multiplier: float = 1000.0, entries: int = 1000) -> Tensor:
    """Return a model's sigmas, float32 and rising to 1, shifted by s*u / (1 + (s-1)*u).

    Source: Esser et al. 2024, arXiv:2403.03206, section 5.3.2. `multiplier` shows in the rounding alone:
    u goes through the model's timesteps.
    """
    uniform = (torch.arange(1, entries + 1) / entries) * multiplier / multiplier
    return uniform if shift == 1.0 else shift * uniform / (1 + (shift - 1) * uniform)


def flux_table(shift: float, entries: int = 10000) -> Tensor:
    """Return a FLUX-like model's sigmas, float32 and rising to 1, shifted by e^s / (e^s + 1/u - 1)."""
    uniform = torch.arange(1, entries + 1) / entries
    return math.exp(shift) / (math.exp(shift) + (1 / uniform - 1))


def simple(table: Tensor, steps: int) -> Tensor:
    """Return `steps` sigmas picked at even strides from the top of `table`, then 0: float32 [steps + 1]."""
    stride = len(table) / steps
    picked = [float(table[-1 - int(step * stride)]) for step in range(steps)]
    return torch.tensor([*picked, 0.0])


def simple_sigmas(
    table: Tensor, steps: int, *, denoise: float = 1.0, drop_penultimate: bool = False
) -> Tensor:
    """Return the `simple` sigmas of a run of `steps` steps over the last `denoise` share of a schedule.

    `drop_penultimate` is `Sampler.drops_penultimate`. A `denoise` of 0 or less gives an empty tensor:
    nothing to sample.
    """
    if denoise <= 0.0:
        return torch.empty(0)
    whole = steps if denoise > 0.9999 else int(steps / denoise)
    if drop_penultimate:
        sigmas = simple(table, whole + 1)
        sigmas = torch.cat([sigmas[:-2], sigmas[-1:]])
    else:
        sigmas = simple(table, whole)
    return sigmas[-(steps + 1) :]
