from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from outboard.engine.sampling.euler import sample_euler
from outboard.engine.sampling.heunpp import sample_heunpp2
from outboard.engine.sampling.noise import NoiseSource


def cosine(x: Tensor, sigma: Tensor) -> Tensor:
    return x.cos()


def test_it_looks_two_sigmas_ahead_but_never_at_the_last(arguments: dict[str, Any]) -> None:
    seen: list[float] = []

    def model(x: Tensor, sigma: Tensor) -> Tensor:
        seen.append(round(float(sigma[0]), 3))
        return cosine(x, sigma)

    sample_heunpp2(model, torch.ones(1, 1, 2, 2), torch.tensor([0.9, 0.7, 0.5, 0.3, 0.0]), **arguments)
    assert seen == [0.9, 0.7, 0.5, 0.7, 0.5, 0.3, 0.5, 0.3, 0.3]


def test_on_a_straight_path_it_is_euler(arguments: dict[str, Any]) -> None:
    def model(x: Tensor, sigma: Tensor) -> Tensor:
        return x - 2 * sigma.reshape(-1, 1, 1, 1)

    x, sigmas = torch.randn(1, 2, 3, 3), torch.tensor([0.9, 0.7, 0.5, 0.3, 0.0])
    ours = sample_heunpp2(model, x, sigmas, **arguments)
    assert torch.allclose(ours, sample_euler(model, x, sigmas, **arguments), atol=1e-6)


def test_its_generator_moves_on_where_it_does_not_churn(arguments: dict[str, Any]) -> None:
    x = torch.zeros(1, 1, 2, 2)
    source = NoiseSource(3, x)
    sample_heunpp2(
        cosine, x, torch.tensor([0.9, 0.5, 0.0]), s_churn=1.0, s_tmax=0.6, **arguments | {"noise": source}
    )
    fresh = NoiseSource(3, x)
    drawn = [fresh.churn() for _ in range(3)]
    assert torch.equal(source.churn(), drawn[2])
