"""Residuals in shared memory, and what happens without."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import torch

from outboard.nodes.residuals import Residuals
from outboard.protocol.arena import Arena
from outboard.protocol.shelf import Shelf
from outboard.protocol.shm import session_prefix
from outboard.protocol.torch import from_wire

PREFIX = session_prefix("e1", "s1")


def test_without_shared_memory_an_object_is_one_frame_and_nothing_is_said(
    caplog: pytest.LogCaptureFixture,
) -> None:
    residuals, tensor = Residuals(None), torch.ones(2, 3)
    residuals.begin()
    first = residuals.wire(tensor)
    assert residuals.wire(tensor) is first
    assert first.place is None
    assert residuals.wire(tensor.clone()) is not first
    assert residuals.settled()
    tensor += 1
    residuals.begin()
    assert torch.equal(from_wire(residuals.wire(tensor)), torch.full((2, 3), 2.0))
    residuals.close(reusable=True)
    assert caplog.records == []


def test_too_little_shared_memory_is_told_once_with_the_remedy(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    residuals = Residuals(Shelf(Arena(PREFIX, root=tmp_path, capacity=1)))
    residuals.begin()
    with caplog.at_level(logging.WARNING):
        wires = [residuals.wire(torch.ones(2)), residuals.wire(torch.ones(3))]
    assert [wire.place for wire in wires] == [None, None]
    (record,) = caplog.records
    assert "--shm-size" in record.getMessage()
    assert "of the 1 bytes that a session may have" in record.getMessage()


def test_an_empty_residual_needs_no_room(tmp_path: Path) -> None:
    residuals = Residuals(Shelf(Arena(PREFIX, root=tmp_path)))
    residuals.begin()
    assert residuals.wire(torch.ones(1, 0, 4)).shape == (1, 0, 4)
    assert list(tmp_path.iterdir()) == []
