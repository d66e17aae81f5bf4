from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from outboard.engine.sampling.ddpm import sample_ddpm
from outboard.engine.sampling.noise import NoiseSource


def zero(x: Tensor, sigma: Tensor) -> Tensor:
    return torch.zeros_like(x)


def test_ddpm_keeps_the_noise_level(arguments: dict[str, Any]) -> None:
    x = 0.9 * torch.randn(1, 1, 256, 256, generator=torch.Generator().manual_seed(1))
    stepped = sample_ddpm(zero, x, torch.tensor([0.9, 0.5]), **arguments | {"noise": NoiseSource(3, x)})
    assert float(stepped.std()) == pytest.approx(0.5, rel=0.02)


def test_ddpm_ends_on_x0(arguments: dict[str, Any]) -> None:
    x = torch.randn(1, 1, 2, 2)
    ended = sample_ddpm(zero, x, torch.tensor([0.9, 0.5, 0.0]), **arguments)
    assert torch.allclose(ended, torch.zeros_like(x), atol=1e-6)
