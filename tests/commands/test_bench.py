from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from math import nan
from pathlib import Path

import pytest

import tree
from outboard.engine.bench.row import Row
from outboard.engine.cli import main
from outboard.engine.commands import bench


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[Row]:
    """What the benchmark will have measured."""
    rows = [Row("hop", "1 MB", "frames", 0.5, "ms", None, True)]

    def stand_in(name: str) -> Iterator[Row]:
        assert name == "hop"
        yield from rows

    monkeypatch.setattr(bench, "rows", stand_in)
    return rows


def test_every_benchmark_has_a_name_on_the_command_line() -> None:
    measuring = {
        path.stem
        for path in tree.sources("engine/bench")
        for node in tree.parse(path).body
        if isinstance(node, ast.FunctionDef) and node.name == "rows"
    }
    assert measuring == set(bench.BENCHES)


def test_json_is_one_object_a_line(measured: list[Row], capsys: pytest.CaptureFixture[str]) -> None:
    measured.append(Row("hop", "1 MB", "shm / frames", 0.7, "x", 1.0, True))
    assert main(["bench", "hop", "--json"]) == 0
    first, second = map(json.loads, capsys.readouterr().out.splitlines())
    assert list(first) == ["bench", "case", "metric", "value", "unit", "target", "ok"]
    assert (first["target"], second["target"]) == (None, 1.0)


def test_a_missed_target_is_a_failure_and_the_rest_is_still_measured(
    measured: list[Row], capsys: pytest.CaptureFixture[str]
) -> None:
    measured.insert(0, Row("hop", "1 MB", "shm / frames", 1.3, "x", 1.0, False))
    assert main(["bench", "hop"]) == 1
    missed, fine = capsys.readouterr().out.splitlines()
    assert missed.endswith("target 1 x  MISSED")
    assert "frames" in fine
    assert "target" not in fine


def test_a_number_that_could_not_be_measured_is_null_and_a_failure(
    measured: list[Row], capsys: pytest.CaptureFixture[str]
) -> None:
    measured[:] = [Row("hop", "1 MB", "shm / frames", nan, "x", 1.0, False)]
    assert main(["bench", "hop", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["value"] is None
    assert main(["bench", "hop"]) == 1
    assert "not measured" in capsys.readouterr().out


def test_a_benchmark_gets_the_paths_it_takes_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Path | None] = {}

    def stand_in(_: str, **paths: Path | None) -> Iterator[Row]:
        given.update(paths)
        return iter(())

    monkeypatch.setattr(bench, "rows", stand_in)
    assert main(["bench", "step", "--comfyui", "somewhere"]) == 0
    assert given == {"comfyui": Path("somewhere"), "comfyui_python": None}
    with pytest.raises(SystemExit):
        main(["bench", "hop", "--comfyui", "somewhere"])


def test_an_unknown_benchmark_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(["bench", "speed"])
    assert exit_.value.code == 2
    assert "hop" in capsys.readouterr().err


def test_rows_come_from_the_benchmark_of_that_name() -> None:
    assert next(bench.rows("hop")).bench == "hop"
