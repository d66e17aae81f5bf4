"""The overhead benchmark measures all three paths, and only when they compute the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from outboard.engine.bench import overhead


def test_every_path_is_measured_against_the_bare_loop(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder: Path = tmp_path_factory.mktemp("o")
    monkeypatch.setenv("OUTBOARD_RUNTIME_DIR", str(folder))
    monkeypatch.setattr(overhead, "SIDES", (8,))
    rows = list(overhead.rows(rounds=1))
    assert [row.metric for row in rows] == [
        "bare step",
        "whole_loop step",
        "per_step step",
        "whole_loop / bare",
        "per_step / bare",
    ]
    assert all(row.value > 0 for row in rows)
    assert [row.target for row in rows[3:]] == [1.02, 1.05]
    assert not list(folder.glob("*.json"))
