from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from outboard.engine.cli import main
from outboard.engine.commands import doctor
from outboard.engine.config import Environment
from outboard.engine.diagnosis import Finding

FINE = Finding("sockets", True, "can be opened")
WRONG = Finding("torch", False, "cannot be imported", "Run `outboard setup`.")


def having_found(*findings: Finding, patch: pytest.MonkeyPatch) -> None:
    def diagnose(environment: Environment) -> Iterator[Finding]:
        yield from findings

    patch.setattr(doctor, "diagnose", diagnose)


def test_health_is_success(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    having_found(FINE, patch=monkeypatch)
    assert main(["doctor"]) == 0
    assert capsys.readouterr().out.endswith("no problems\n")


def test_a_problem_is_failure_and_comes_with_its_remedy(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    having_found(FINE, WRONG, patch=monkeypatch)
    assert main(["doctor"]) == 1
    shown = capsys.readouterr().out
    assert "PROBLEM  torch: cannot be imported" in shown
    assert "Run `outboard setup`." in shown
    assert shown.endswith("1 problem\n")


def test_json_is_one_object_a_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    having_found(FINE, WRONG, patch=monkeypatch)
    assert main(["doctor", "--json"]) == 1
    first, second = map(json.loads, capsys.readouterr().out.splitlines())
    assert (first["ok"], second["check"]) == (True, "torch")


def test_this_installation_is_healthy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OUTBOARD_RUNTIME_DIR", str(tmp_path))
    assert main(["doctor"]) == 0, capsys.readouterr().out
