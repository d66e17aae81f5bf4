"""The hop benchmark measures what it says, ends its processes and leaves no shared memory behind."""

from __future__ import annotations

import pytest

from outboard.engine.bench import hop
from outboard.engine.bench.row import Row
from outboard.protocol.shm import engine_prefix, shm_root


@pytest.fixture
def rows(monkeypatch: pytest.MonkeyPatch) -> dict[str, Row]:
    monkeypatch.setattr(hop, "SIZES", {"small": 200_000})
    return {row.metric: row for row in hop.rows(repeats=1)}


def test_every_way_is_measured_in_one_run(rows: dict[str, Row]) -> None:
    assert {row.case for row in rows.values()} == {"small"}
    for name in ("memcpy", "bare", "frames", "shm"):
        assert rows[name].value > 0
    for name in ("frames", "shm"):
        assert rows[f"{name} / memcpy"].value == pytest.approx(rows[name].value / rows["memcpy"].value)
    assert rows["frames / bare"].target == 1.5
    assert rows["frames / bare"].ok == (rows["frames / bare"].value <= 1.5)
    assert list(shm_root().glob(f"{engine_prefix('bench')}*")) == []
