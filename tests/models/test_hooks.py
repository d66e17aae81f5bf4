"""Changed inputs and outputs of a part, for the length of one call."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from outboard.engine.models.hooks import changed_inputs, changed_output


def test_inputs_are_changed_within_and_not_after() -> None:
    part, one = nn.Identity(), torch.ones(1)
    with changed_inputs(part, lambda inputs: (inputs[0] + 1,)):
        assert part(one) == 2
    assert part(one) is one


def test_outputs_are_changed_within_and_not_after() -> None:
    part, one = nn.Identity(), torch.ones(1)
    with changed_output(part, lambda output: output * 3):
        assert part(one) == 3
    assert part(one) is one


def test_a_failed_call_leaves_nothing_changed() -> None:
    part, one = nn.Identity(), torch.ones(1)
    with pytest.raises(KeyError), changed_inputs(part, lambda inputs: (inputs[0] + 1,)):
        raise KeyError
    assert part(one) is one
