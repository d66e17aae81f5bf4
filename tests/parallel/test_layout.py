"""Layouts: their product, and the one that is chosen."""

from __future__ import annotations

import pytest

from outboard.engine.parallel.layout import Layout, automatic
from outboard.protocol.errors import InvalidRequestError


def test_a_product_that_is_not_the_number_of_ranks_is_refused_with_the_numbers() -> None:
    with pytest.raises(InvalidRequestError, match=r"cfg 2 x ring 1 x ulysses 2 x tp 1 = 4 .* 3 ranks"):
        Layout(cfg=2, ulysses=2).check_world(3)
    Layout(cfg=2, ulysses=2).check_world(4)


def test_sizes_below_one_are_refused() -> None:
    with pytest.raises(InvalidRequestError, match="ring"):
        Layout(ring=0)


@pytest.mark.parametrize(
    ("ranks", "cfg", "heads", "wanted"),
    [
        (1, 4.0, 24, Layout()),
        (2, 4.0, 24, Layout(cfg=2)),
        (2, 1.0, 24, Layout(ulysses=2)),
        (4, 4.0, 30, Layout(cfg=2, ulysses=2)),
        (4, 1.0, 30, Layout(ring=2, ulysses=2)),
        (3, 4.0, 24, Layout(ulysses=3)),
        (8, 4.0, 24, Layout(cfg=2, ulysses=4)),
    ],
)
def test_rows_come_first_then_heads_and_the_ring_takes_what_does_not_divide(
    ranks: int, cfg: float, heads: int, wanted: Layout
) -> None:
    chosen = automatic(ranks, cfg=cfg, heads=heads)
    assert chosen == wanted
    chosen.check_world(ranks)


def test_weights_are_cut_only_when_they_do_not_fit() -> None:
    assert automatic(4, cfg=1.0, heads=24, nbytes=10, room=10) == Layout(ulysses=4)
    assert automatic(4, cfg=1.0, heads=24, nbytes=20, room=10) == Layout(ulysses=2, tp=2)
    # Cond and uncond apart would leave two ranks, too few for these weights.
    assert automatic(4, cfg=4.0, heads=24, nbytes=40, room=10) == Layout(tp=4)


def test_weights_that_no_cut_makes_fit_are_refused() -> None:
    with pytest.raises(InvalidRequestError, match="30 heads"):
        automatic(4, cfg=1.0, heads=30, nbytes=40, room=10)
