"""The control benchmark measures every way in one run, and leaves nothing behind."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

import harness
from outboard.engine.bench import control
from outboard.engine.bench.overhead import open_client
from outboard.protocol.client import Client


def test_every_way_is_measured_against_one_copy(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    engines: list[str] = []

    @contextmanager
    def watched(device: torch.device) -> Iterator[Client]:
        with open_client(device) as client:
            engines.append(client.welcome.engine)
            yield client

    monkeypatch.setenv("OUTBOARD_RUNTIME_DIR", str(tmp_path_factory.mktemp("o")))
    monkeypatch.setattr(control, "open_client", watched)
    monkeypatch.setattr(control, "SHAPE", (1, 8, 512))
    rows = list(control.rows(rounds=1))
    assert [row.metric for row in rows] == [
        "memcpy",
        "without",
        "fresh",
        "rewritten",
        "unchanged",
        "fresh / memcpy",
        "rewritten / memcpy",
        "unchanged / memcpy",
    ]
    assert all(row.value > 0 for row in rows[:5])
    assert [row.target for row in rows[5:]] == [1.5, None, control.UNCHANGED_TARGET]
    (engine,) = engines
    assert harness.segments(engine) == []
