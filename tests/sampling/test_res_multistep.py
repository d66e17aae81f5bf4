from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from outboard.engine.sampling.ancestral import split_variance
from outboard.engine.sampling.flow import Flow
from outboard.engine.sampling.noise import NoiseSource
from outboard.engine.sampling.res_multistep import sample_res_multistep, sample_res_multistep_ancestral


def cosine(x: Tensor, sigma: Tensor) -> Tensor:
    return x.cos()


def test_res_multistep_is_second_order(order: Callable[..., float]) -> None:
    assert order(sample_res_multistep) > 1.7


def test_s_noise_has_nothing_to_scale(arguments: dict[str, Any]) -> None:
    x, sigmas = torch.randn(1, 2, 3, 3), torch.tensor([0.8, 0.5, 0.3])
    quiet = sample_res_multistep(cosine, x, sigmas, **arguments)
    loud = sample_res_multistep(cosine, x, sigmas, s_noise=9.0, **arguments)
    assert torch.equal(quiet, loud)


def test_ancestral_without_eta_is_the_plain_one(arguments: dict[str, Any]) -> None:
    x, sigmas = torch.randn(1, 2, 3, 3), torch.tensor([0.8, 0.5, 0.3, 0.0])
    ours = sample_res_multistep_ancestral(cosine, x, sigmas, eta=0.0, **arguments)
    assert torch.equal(ours, sample_res_multistep(cosine, x, sigmas, **arguments))


def test_ancestral_adds_the_models_noise(arguments: dict[str, Any]) -> None:
    x, sigmas = torch.zeros(1, 1, 2, 2), torch.tensor([0.8, 0.5])
    given = arguments | {"flow": Flow(1.0, noise_scale=3.0), "noise": NoiseSource(3, x)}
    stepped = sample_res_multistep_ancestral(cosine, x, sigmas, s_noise=0.5, **given)
    _, up = split_variance(sigmas[0], sigmas[1], 1.0)
    quiet = sample_res_multistep_ancestral(cosine, x, sigmas, s_noise=0.0, **given)
    assert torch.allclose(stepped - quiet, NoiseSource(3, x)() * (up * 1.5), atol=1e-6)
