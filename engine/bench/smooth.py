"""Random weights that are like trained ones in this: what the network says changes smoothly with time."""

from __future__ import annotations

import re

import torch
from torch import nn

CLOCK = re.compile(r"(timestep_embedder|time_embedder|time_embedding)\.linear_1$|t_embedder\.mlp\.0$")
CHROMA_CLOCK = "distilled_guidance_layer.in_proj"
#: Of the sinusoids that a timestep is embedded as, the part that is too fast to be heard.
DEAF = 0.6


def smoothed(module: nn.Module) -> None:
    """Make a network deaf to the fast waves of its timestep; random weights would follow them."""
    for name, part in module.named_modules():
        if CLOCK.search(name):
            assert isinstance(part, nn.Linear)
            _deafen(part, part.in_features)
        elif name == CHROMA_CLOCK:
            assert isinstance(part, nn.Linear)
            _deafen(part, part.in_features // 4)


def _deafen(part: nn.Linear, waves: int) -> None:
    """Both halves of the first `waves` inputs begin with the fastest."""
    fast = torch.arange(waves) % (waves // 2) < DEAF * (waves // 2)
    part.weight.data[:, :waves][:, fast] = 0
