"""The control benchmark measures every way in one run, and leaves nothing behind."""

from __future__ import annotations

import pytest

from outboard.engine.bench import control
from outboard.protocol.shm import FAMILY, shm_root


def test_every_way_is_measured_against_one_copy(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OUTBOARD_RUNTIME_DIR", str(tmp_path_factory.mktemp("o")))
    monkeypatch.setattr(control, "SHAPE", (1, 8, 512))
    before = set(shm_root().glob(f"{FAMILY}*"))
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
    assert set(shm_root().glob(f"{FAMILY}*")) <= before
