from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from outboard.engine.sampling.unipc import sample_uni_pc, sample_uni_pc_bh2
from outboard.protocol.errors import UnsupportedRequestError


def cosine(x: Tensor, sigma: Tensor) -> Tensor:
    return x.cos()


@pytest.mark.parametrize("variant", ["bh1", "bh2"])
def test_uni_pc_is_second_order_its_last_step_being_first(variant: str, order: Callable[..., float]) -> None:
    assert order(partial(sample_uni_pc, variant=variant)) > 1.7


def test_bh2_is_a_variant(arguments: dict[str, Any]) -> None:
    x, sigmas = torch.randn(1, 2, 3, 3), torch.tensor([0.9, 0.7, 0.4, 0.2])
    solve = partial(sample_uni_pc, cosine, x, sigmas, **arguments)
    bh2 = sample_uni_pc_bh2(cosine, x, sigmas, **arguments)
    assert torch.equal(bh2, solve(variant="bh2"))
    assert not torch.equal(bh2, solve())


def test_an_unknown_variant_is_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedRequestError, match="bh3"):
        sample_uni_pc(cosine, torch.ones(1), torch.tensor([1.0, 0.5]), variant="bh3", **arguments)


@pytest.mark.parametrize("steps", [1, 2, 3, 4, 7])
def test_every_step_calls_the_model_once(steps: int, arguments: dict[str, Any]) -> None:
    called: list[float] = []

    def model(x: Tensor, sigma: Tensor) -> Tensor:
        called.append(float(sigma[0]))
        return x / 2

    sigmas = torch.linspace(1.0, 0.1, steps + 1)
    sample_uni_pc(model, torch.ones(2, 1, 2, 2), sigmas, **arguments)
    assert called == sigmas[:-1].tolist()
