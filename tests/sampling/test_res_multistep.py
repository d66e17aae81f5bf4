from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from outboard.engine.sampling.res_multistep import sample_res_multistep


def cosine(x: Tensor, sigma: Tensor) -> Tensor:
    return x.cos()


def test_res_multistep_is_second_order(order: Callable[..., float]) -> None:
    assert order(sample_res_multistep) > 1.7


def test_s_noise_has_nothing_to_scale(arguments: dict[str, Any]) -> None:
    x, sigmas = torch.randn(1, 2, 3, 3), torch.tensor([0.8, 0.5, 0.3])
    quiet = sample_res_multistep(cosine, x, sigmas, **arguments)
    loud = sample_res_multistep(cosine, x, sigmas, s_noise=9.0, **arguments)
    assert torch.equal(quiet, loud)
