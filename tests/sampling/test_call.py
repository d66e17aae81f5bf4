"""What a forward says of itself."""

from __future__ import annotations

import pytest

from outboard.engine.sampling.call import Call, step_at


def test_rows_are_named_branch_by_branch() -> None:
    call = Call(("b", "a"), rows=2, step=0, sigma=1.0)
    assert call.keys == [("b", 0), ("b", 1), ("a", 0), ("a", 1)]


@pytest.mark.parametrize(("sigma", "step"), [(1.0, 0), (0.9, 0), (0.8, 1), (0.1, 2), (0.0, 3), (2.0, 0)])
def test_the_step_is_the_last_that_begins_at_or_above(sigma: float, step: int) -> None:
    assert step_at((1.0, 0.8, 0.4, 0.0), sigma) == step
