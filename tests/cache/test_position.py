from __future__ import annotations

import pytest

from outboard.engine.cache.position import position_of

SIGMAS = (1.0, 0.8, 0.4, 0.0)


@pytest.mark.parametrize(
    ("sigma", "position"),
    [(1.0, 0.0), (0.8, 1.0), (0.800001, 1.0), (0.6, 1.5), (0.0, 3.0), (1.2, None), (-0.1, None)],
)
def test_a_sigma_has_its_place_in_the_schedule(sigma: float, position: float | None) -> None:
    found = position_of(sigma, SIGMAS)
    assert found is None if position is None else found == pytest.approx(position)


def test_nothing_has_a_place_in_no_schedule() -> None:
    assert position_of(0.5, ()) is None
