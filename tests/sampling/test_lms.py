from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from outboard.engine.sampling.euler import sample_euler
from outboard.engine.sampling.lms import sample_lms
from outboard.protocol.errors import UnsupportedRequestError


def halve(x: Tensor, sigma: Tensor) -> Tensor:
    return x / 2


def test_lms_converges_faster_than_euler(order: Callable[..., float]) -> None:
    assert order(partial(sample_lms, order=2)) > 1.7
    assert order(sample_lms) > 1.7


def test_order_1_is_euler(arguments: dict[str, Any]) -> None:
    x, sigmas = torch.randn(1, 2, 3, 3), torch.tensor([0.9, 0.7, 0.4, 0.0])
    ours = sample_lms(halve, x, sigmas, order=1, **arguments)
    assert torch.allclose(ours, sample_euler(halve, x, sigmas, **arguments), atol=1e-6)


@pytest.mark.parametrize("order", [0, 7])
def test_an_order_it_has_not_is_refused(order: int, arguments: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedRequestError, match=str(order)):
        sample_lms(halve, torch.ones(1, 1, 2, 2), torch.tensor([1.0, 0.5]), order=order, **arguments)
