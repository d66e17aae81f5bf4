from __future__ import annotations

from typing import Any

import pytest
import torch

from outboard.engine.sampling.branch import Area, Branch, Side
from outboard.engine.sampling.plan import TINY, Plan, make_plan

X = torch.zeros(2, 1, 8, 8)
SIGMA = torch.tensor(0.5)


def branch(name: str, words: int = 3, **changes: Any) -> Branch:
    return Branch(name, {"context": torch.full((2, words, 1), float(len(name)))}, **changes)


def ids(plan: Plan) -> list[list[str]]:
    return [[part.branch.id for part in call.parts] for call in plan.calls]


def planned(*sides: Side | None, **options: Any) -> list[list[str]]:
    return ids(make_plan(sides, X, SIGMA, **options))


def test_all_that_fit_share_one_call_the_last_first() -> None:
    assert planned((branch("p"), branch("q")), (branch("n"),)) == [["n", "q", "p"]]


def test_the_first_of_what_is_left_leads_the_next_call() -> None:
    sides = (branch("p"), branch("q", 5)), (branch("n"), branch("m", 5))
    assert planned(*sides) == [["n", "p"], ["m", "q"]]


def test_short_memory_takes_the_last_that_fits_alone() -> None:
    sides = (branch("p"), branch("q", 5)), (branch("n"),)
    assert planned(*sides, batched=False) == [["n"], ["p"], ["q"]]


def test_lengths_differ_only_where_the_network_masks_them() -> None:
    sides = (branch("p", 3),), (branch("n", 5),)
    assert planned(*sides) == [["p"], ["n"]]
    assert planned(*sides, ragged={"context"}) == [["n", "p"]]


def test_ragged_rows_come_as_a_list() -> None:
    sides = (branch("p", 3), branch("q", 3)), (branch("n", 5),)
    (call,) = make_plan(sides, X, SIGMA, ragged={"context"}).calls
    assert [len(row) for row in call.conditioning["context"]] == [5, 5, 3, 3, 3, 3]
    (alike,) = make_plan((sides[0],), X, SIGMA, ragged={"context"}).calls
    assert alike.conditioning["context"].shape == (4, 3, 1)


def test_areas_of_one_size_share_a_call_wherever_they_lie() -> None:
    left, right = Area((8, 4), (0, 0)), Area((8, 4), (0, 4))
    side = branch("p"), branch("l", area=left), branch("r", area=right)
    assert planned(side) == [["p"], ["r", "l"]]


def test_what_is_out_of_its_range_or_side_is_left_out() -> None:
    assert planned((branch("p"), branch("late", end=0.6), branch("early", start=0.4)), None) == [["p"]]


def test_one_plain_branch_needs_no_sum() -> None:
    plan = make_plan(((branch("p", strength=0.3),), (), (branch("a"), branch("b"))), X, SIGMA)
    assert plan.sums[0] is None
    for total, expected in ((plan.sums[1], TINY), (plan.sums[2], 2.0)):
        assert total is not None
        assert torch.equal(total, torch.full((2, 1, 8, 8), expected))


def test_a_branch_without_strength_counts_for_nothing() -> None:
    total = make_plan(((branch("p", strength=0.0),),), X, SIGMA).sums[0]
    assert total is not None
    assert float(total.max()) == pytest.approx(TINY)


def test_a_fallback_fills_what_the_others_leave() -> None:
    mask = torch.zeros(1, 1, 8, 8)
    mask[..., :4] = 0.75
    plan = make_plan(((branch("p", mask=mask), branch("rest", fallback=True)),), X, SIGMA)
    (call,) = plan.calls
    assert [part.branch.id for part in call.parts] == ["rest", "p"]
    room = call.parts[0].weight
    assert isinstance(room, torch.Tensor)
    assert room[0, 0, 0].tolist() == [0.25] * 4 + [1.0] * 4


def test_a_fallback_stays_out_where_nothing_is_left() -> None:
    assert planned((branch("p"), branch("rest", fallback=True))) == [["p"]]
    both = (branch("p"), branch("rest", fallback=True)), (branch("n", mask=torch.zeros(1, 1, 8, 8)),)
    assert planned(*both) == [["n", "p"]]
