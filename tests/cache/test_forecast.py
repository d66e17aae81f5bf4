from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from outboard.engine.cache.forecast import Snapshot, predict, remember, weights


@settings(deadline=None)
@given(
    positions=st.lists(st.integers(0, 40), min_size=1, max_size=3, unique=True).map(sorted),
    at=st.integers(0, 60),
    factors=st.lists(st.integers(-3, 3), min_size=3, max_size=3),
)
def test_a_polynomial_of_its_order_is_continued_exactly_from_uneven_steps(
    positions: list[int], at: int, factors: list[int]
) -> None:
    terms = factors[: len(positions)]

    def value(position: float) -> torch.Tensor:
        return torch.tensor(
            [sum(factor * position**power for power, factor in enumerate(terms))], dtype=torch.float64
        )

    found = predict(
        [value(position) for position in positions], [float(place) for place in positions], float(at)
    )
    torch.testing.assert_close(found, value(at), rtol=1e-3, atol=1e-2 * (1 + at))


def test_the_weights_are_one_together() -> None:
    assert sum(weights([1.0, 4.0, 6.0], 9.0)) == pytest.approx(1.0)
    assert weights([3.0], 8.0) == [1.0]


@pytest.mark.parametrize("order", [0, 1, 2])
def test_as_many_steps_are_remembered_as_the_order_needs(order: int) -> None:
    history: tuple[Snapshot, ...] = ()
    for position in (0.0, 2.0, 3.0, 3.0, 5.0):
        history = remember(history, Snapshot(position, torch.zeros(1), None), order)
    assert [snapshot.position for snapshot in history] == [0.0, 2.0, 3.0, 5.0][-(order + 1) :]


def test_half_precision_is_summed_in_full() -> None:
    ones = [torch.full((4,), value, dtype=torch.bfloat16) for value in (1.0, 1.0078125)]
    assert predict(ones, [0.0, 1.0], 2.0).tolist() == [1.015625] * 4
