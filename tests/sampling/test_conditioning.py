from __future__ import annotations

from typing import Any

import pytest
import torch

from outboard.engine.sampling.conditioning import join, joinable, repeat_rows


def test_rows_are_repeated_in_turn_and_cut_to_the_batch() -> None:
    two = torch.tensor([[1.0], [2.0]])
    assert repeat_rows(two, 3).flatten().tolist() == [1.0, 2.0, 1.0]
    assert repeat_rows(two, 1).flatten().tolist() == [1.0]


def test_tensors_in_lists_and_mappings_are_repeated_too() -> None:
    row = torch.ones(1, 4)
    repeated = repeat_rows({"refs": [row, row], "control": {"input": [row, None]}, "method": "index"}, 3)
    assert [tensor.shape[0] for tensor in repeated["refs"]] == [3, 3]
    assert repeated["control"]["input"][0].shape[0] == 3
    assert repeated["control"]["input"][1] is None
    assert repeated["method"] == "index"


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"a": torch.ones(1, 2)}, {"a": torch.ones(1, 3)}),
        ({"a": torch.ones(1, 2)}, {"b": torch.ones(1, 2)}),
        ({"a": torch.ones(1, 2)}, {"a": None}),
        ({"a": 1.0}, {"a": 2.0}),
        ({"a": True}, {"a": 1}),
        ({"a": torch.tensor(1.0)}, {"a": torch.tensor(2.0)}),
        ({"a": [torch.ones(1, 2)]}, {"a": [torch.ones(1, 2)] * 2}),
        ({"a": {"theta": 1.0}}, {"a": {"theta": 2.0}}),
    ],
)
def test_what_differs_beyond_tensor_values_cannot_share_a_call(first: Any, second: Any) -> None:
    assert not joinable(first, second)
    assert joinable(first, first)


def test_joined_rows_keep_their_order() -> None:
    first = {"a": torch.zeros(1, 2), "b": [torch.zeros(1)], "c": 3, "d": torch.tensor(4.0)}
    second = {"a": torch.ones(1, 2), "b": [torch.ones(1)], "c": 3, "d": torch.tensor(4.0)}
    joined = join(first, second)
    assert joined["a"].tolist() == [[0.0, 0.0], [1.0, 1.0]]
    assert joined["b"][0].tolist() == [0.0, 1.0]
    assert joined["c"] == 3
    assert joined["d"].ndim == 0
