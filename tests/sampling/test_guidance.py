from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from outboard.engine.sampling.conditioning import Conditioning
from outboard.engine.sampling.guidance import NEGATIVE, POSITIVE, cfg_denoiser, plan_calls
from outboard.protocol.errors import InvalidRequestError

POS, NEG = {"k": torch.tensor([[3.0]])}, {"k": torch.tensor([[1.0]])}
LONGER = {"k": torch.tensor([[1.0, 1.0]])}
X, SIGMA = torch.zeros(2, 1, 2, 2), torch.tensor([0.5, 0.5])


def forward(x: Tensor, sigma: Tensor, conditioning: Conditioning) -> Tensor:
    assert len(x) == len(sigma)
    constant: Tensor = conditioning["k"]
    return x + constant.mean(1).reshape(-1, 1, 1, 1)


def branches(positive: Conditioning, negative: Conditioning | None, **options: Any) -> list[tuple[int, ...]]:
    return [call.branches for call in plan_calls(positive, negative, rows=2, **options)]


def test_equal_shapes_share_one_call_negative_first() -> None:
    (call,) = plan_calls(POS, NEG, cfg=4.0, rows=2)
    assert call.branches == (NEGATIVE, POSITIVE)
    assert call.conditioning["k"].flatten().tolist() == [1.0, 1.0, 3.0, 3.0]


def test_unequal_shapes_take_two_calls_positive_first() -> None:
    assert branches(POS, LONGER, cfg=4.0) == [(POSITIVE,), (NEGATIVE,)]


def test_short_memory_takes_two_calls_negative_first() -> None:
    assert branches(POS, NEG, cfg=4.0, batched=False) == [(NEGATIVE,), (POSITIVE,)]


def test_cfg_one_runs_the_positive_alone() -> None:
    assert branches(POS, NEG, cfg=1.0) == [(POSITIVE,)]
    assert branches(POS, None, cfg=1.0) == [(POSITIVE,)]


def test_cfg_one_runs_both_when_asked_to() -> None:
    assert branches(POS, NEG, cfg=1.0, disable_cfg1_optimization=True) == [(NEGATIVE, POSITIVE)]


def test_guidance_without_a_negative_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="cfg of 4"):
        plan_calls(POS, None, cfg=4.0, rows=2)


@pytest.mark.parametrize("negative", [NEG, LONGER])
def test_guidance_extrapolates_from_negative_to_positive(negative: Conditioning) -> None:
    x0 = cfg_denoiser(forward, POS, negative, cfg=4.0, rows=2)(X, SIGMA)
    assert torch.equal(x0, torch.full_like(X, 1.0 + (3.0 - 1.0) * 4.0))


def test_forwards_are_counted() -> None:
    together = cfg_denoiser(forward, POS, NEG, cfg=4.0, rows=2)
    apart = cfg_denoiser(forward, POS, LONGER, cfg=4.0, rows=2)
    for _ in range(3):
        together(X, SIGMA)
        apart(X, SIGMA)
    assert (together.forwards, apart.forwards) == (3, 6)
