"""What repeats is stored once, whoever holds it; what was written to is stored anew."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from outboard.nodes.known import KEPT, Known
from outboard.protocol.tensors import digest
from outboard.protocol.torch import from_wire
from outboard.protocol.values import Blob, WireTensor


class Engine:
    """Stores what it is given, under its digest."""

    def __init__(self) -> None:
        self.stored: list[WireTensor] = []

    def __call__(self, wire: WireTensor) -> Blob:
        self.stored.append(wire)
        return Blob(digest(wire))


def large(seed: int = 0) -> torch.Tensor:
    return torch.randn(1, 16, 300, generator=torch.Generator().manual_seed(seed))


def test_equal_tensors_are_stored_once() -> None:
    engine = Engine()
    known = Known(engine)
    assert known.wire(large()) == known.wire(large()) == known.wire(large().mT.contiguous().mT)
    assert known.wire(large(1)) != known.wire(large())
    assert len(engine.stored) == 2


@pytest.mark.parametrize("write", ["add_", "numpy", "data"])
def test_what_was_written_to_is_stored_anew_and_what_is_stored_stays(write: str) -> None:
    engine = Engine()
    known, tensor = Known(engine), large()
    first = known.wire(tensor)
    if write == "numpy":
        tensor.numpy()[0, 3, 7] = 9
    else:
        (tensor.data if write == "data" else tensor)[0, 3, 7].add_(1)
    assert known.wire(tensor) != first
    assert torch.equal(from_wire(engine.stored[0]), large())
    assert torch.equal(from_wire(engine.stored[1]), tensor)


def test_form_counts_as_much_as_bytes() -> None:
    engine = Engine()
    known = Known(engine)
    names = {known.wire(large().view(form)) for form in (torch.float32, torch.int32)}
    names |= {known.wire(large().reshape(16, 300))}
    assert len(names) == 3


def test_small_tensors_travel_along() -> None:
    engine = Engine()
    found = Known(engine).wire(torch.arange(3))
    assert isinstance(found, WireTensor)
    assert engine.stored == []


def test_what_changes_at_every_step_does_not_pile_up() -> None:
    engine = Engine()
    known: Any = Known(engine)
    for seed in range(3 * KEPT):
        known.wire(large(seed))
    assert sum(map(len, known._kept.values())) == KEPT
