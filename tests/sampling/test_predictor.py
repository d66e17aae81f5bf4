from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from outboard.engine.sampling.branch import Area, Branch
from outboard.engine.sampling.call import Call, step_at
from outboard.engine.sampling.conditioning import Conditioning
from outboard.engine.sampling.predictor import Predictor
from outboard.protocol.errors import OutOfMemoryError

X = torch.randn(2, 1, 4, 4, generator=torch.Generator().manual_seed(0))
SIGMA = torch.tensor(0.5)


class Network:
    """x0 = the row's own constant; remembers its calls, and has room for so many rows."""

    def __init__(self, room: int = 99) -> None:
        self.calls: list[Call] = []
        self._room = room

    def __call__(self, x: Tensor, sigma: Tensor, conditioning: Conditioning, call: Call) -> Tensor:
        assert x.shape[0] == len(sigma) == call.rows * len(call.branches)
        self.calls.append(call)
        if len(x) > self._room:
            raise OutOfMemoryError("no room")
        constant: Tensor = conditioning["k"]
        return torch.zeros_like(x) + constant.reshape(-1, 1, 1, 1)


def branch(name: str, value: float, **changes: object) -> Branch:
    return Branch(name, {"k": torch.tensor([value, value + 10])}, **changes)  # type: ignore[arg-type]


def test_a_side_is_the_weighted_average_of_its_branches() -> None:
    network = Network()
    (x0,) = Predictor(network)(X, SIGMA, [(branch("a", 1.0, strength=3.0), branch("b", 5.0))])
    assert x0 is not None
    assert x0[:, 0, 0, 0].tolist() == [2.0, 12.0]
    assert [call.branches for call in network.calls] == [("b", "a")]


def test_where_nothing_counts_the_prediction_is_zero() -> None:
    area = Area((4, 2), (0, 2))
    mask = torch.ones(1, 1, 4, 4)
    positive, nothing, absent = Predictor(Network())(
        X, SIGMA, [(branch("a", 3.0, area=area, mask=mask),), (), None]
    )
    assert positive is not None and nothing is not None
    assert positive[0, 0, 0].tolist() == [0, 0, 3, 3]
    assert nothing.any() == torch.tensor(False)
    assert absent is None


def test_a_call_says_whose_rows_it_carries_and_when() -> None:
    network = Network()
    predictor = Predictor(network, schedule=[1.0, 0.5, 0.25, 0.0])
    predictor(X, SIGMA, [(branch("p", 1.0),), (branch("n", 2.0),)])
    assert network.calls == [Call(("n", "p"), rows=2, step=1, sigma=0.5)]


def test_between_two_levels_the_earlier_step_is_under_way() -> None:
    schedule = [1.0, 0.5, 0.25, 0.0]
    assert [step_at(schedule, sigma) for sigma in (2.0, 1.0, 0.7, 0.5, 0.3, 0.25)] == [0, 0, 0, 1, 1, 2]


def test_a_range_changes_who_is_asked() -> None:
    network = Network()
    predictor = Predictor(network)
    side = branch("early", 1.0, end=0.6), branch("late", 2.0, start=0.6)
    for sigma in (0.9, 0.2, 0.9):
        predictor(X, torch.tensor(sigma), [side])
    assert [call.branches for call in network.calls] == [("early",), ("late",), ("early",)]
    assert predictor.forwards == 3


@pytest.mark.parametrize("room", [99, 2])
def test_a_call_that_memory_does_not_suffice_for_is_made_in_parts(room: int) -> None:
    network, released = Network(room), list[int]()
    release: Callable[[], None] = lambda: released.append(1)  # noqa: E731
    predictor = Predictor(network, release=release)
    for _ in range(3):
        positive, negative = predictor(X, SIGMA, [(branch("p", 1.0),), (branch("n", 2.0),)])
        assert positive is not None and negative is not None
        assert (float(positive[0].mean()), float(negative[1].mean())) == (1.0, 12.0)
    asked = [call.branches for call in network.calls]
    if room == 99:
        assert (asked, predictor.splits, released) == ([("n", "p")] * 3, 0, [])
    else:
        assert asked == [("n", "p"), *[("n",), ("p",)] * 3]
        assert (predictor.splits, predictor.forwards, released) == (1, 6, [1])


def test_a_single_conditioning_that_does_not_fit_is_an_error() -> None:
    with pytest.raises(OutOfMemoryError):
        Predictor(Network(1))(X, SIGMA, [(branch("p", 1.0),), (branch("n", 2.0),)])
