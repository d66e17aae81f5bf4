from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from outboard.engine.sampling.euler import sample_euler
from outboard.engine.sampling.ipndm import sample_ipndm, sample_ipndm_v
from outboard.engine.sampling.lms import sample_lms
from outboard.protocol.errors import UnsupportedRequestError

Solver = Callable[..., Tensor]
BOTH = pytest.mark.parametrize("solve", [sample_ipndm, sample_ipndm_v])


def halve(x: Tensor, sigma: Tensor) -> Tensor:
    return x / 2


@BOTH
def test_ipndm_converges_faster_than_euler(solve: Solver, order: Callable[..., float]) -> None:
    assert order(partial(solve, max_order=2)) > 1.7


@pytest.mark.parametrize(
    ("solve", "order"),
    [*((sample_ipndm, n) for n in (1, 2, 3, 4)), *((sample_ipndm_v, n) for n in (1, 2, 3))],
)
def test_over_even_steps_it_is_adams_bashforth(solve: Solver, order: int, arguments: dict[str, Any]) -> None:
    x, sigmas = torch.randn(1, 2, 3, 3), torch.linspace(0.9, 0.2, 8)
    ours = solve(halve, x, sigmas, max_order=order, **arguments)
    assert torch.allclose(ours, sample_lms(halve, x, sigmas, order=order, **arguments), atol=1e-5)


def test_over_uneven_steps_order_2_of_the_variable_one_is_adams_bashforth(arguments: dict[str, Any]) -> None:
    x, sigmas = torch.randn(1, 2, 3, 3), torch.tensor([0.9, 0.8, 0.5, 0.4])
    adams = sample_lms(halve, x, sigmas, order=2, **arguments)
    assert torch.allclose(sample_ipndm_v(halve, x, sigmas, max_order=2, **arguments), adams, atol=1e-5)
    assert not torch.allclose(sample_ipndm(halve, x, sigmas, max_order=2, **arguments), adams, atol=1e-3)


@BOTH
def test_a_step_to_zero_goes_to_x0(solve: Solver, arguments: dict[str, Any]) -> None:
    x, sigmas = torch.randn(1, 2, 3, 3), torch.tensor([0.9, 0.0])
    assert torch.allclose(solve(halve, x, sigmas, **arguments), sample_euler(halve, x, sigmas, **arguments))


@BOTH
@pytest.mark.parametrize("order", [0, 5])
def test_an_order_it_has_not_is_refused(solve: Solver, order: int, arguments: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedRequestError, match=f"not {order}"):
        solve(halve, torch.ones(1, 1, 2, 2), torch.tensor([1.0, 0.5]), max_order=order, **arguments)
