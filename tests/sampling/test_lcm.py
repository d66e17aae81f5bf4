from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from outboard.engine.sampling.flow import Flow
from outboard.engine.sampling.lcm import sample_lcm
from outboard.engine.sampling.noise import NoiseSource
from outboard.engine.sampling.step import ignore_step

X = torch.zeros(1, 1, 64, 64)


def zero(x: Tensor, sigma: Tensor) -> Tensor:
    return torch.zeros_like(x)


def arguments(seed: int = 3) -> dict[str, Any]:
    return {"callback": ignore_step, "noise": NoiseSource(seed, X), "flow": Flow(1.0)}


def test_lcm_noises_x0_to_the_next_level() -> None:
    x = sample_lcm(zero, X, torch.tensor([1.0, 0.5]), **arguments())
    assert torch.allclose(x, 0.5 * NoiseSource(3, X)())


def test_lcm_ends_on_x0() -> None:
    x = sample_lcm(zero, X, torch.tensor([1.0, 0.5, 0.0]), **arguments())
    assert not x.any()


def test_the_noise_scale_moves_to_its_end() -> None:
    source = NoiseSource(3, X)
    first, second = source(), source()
    options: dict[str, Any] = {"s_noise": 1.0, "s_noise_end": 0.25}
    one = sample_lcm(zero, X, torch.tensor([1.0, 0.8, 0.5]), **options, **arguments())
    assert torch.allclose(one, 0.5 * 0.25 * second)
    seen: list[Tensor] = []
    keep = arguments() | {"callback": lambda step: seen.append(step.x)}
    sample_lcm(zero, X, torch.tensor([1.0, 0.8, 0.5]), **options, **keep)
    assert torch.allclose(seen[1], 0.8 * first)


def test_the_noise_is_clamped_to_its_deviations() -> None:
    x = sample_lcm(zero, X, torch.tensor([1.0, 0.5]), noise_clip_std=1.0, **arguments())
    assert abs(float(x.abs().max()) - 0.5 * float(NoiseSource(3, X)().std())) < 1e-6
