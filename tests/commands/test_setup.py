from __future__ import annotations

from pathlib import Path

import pytest

from outboard.engine.cli import main


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OUTBOARD_HOME", str(tmp_path))
    return tmp_path


def test_a_dry_run_shows_the_commands_and_makes_nothing(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["setup", "--dry-run", "--torch", "torch==2.9.1"]) == 0
    shown = capsys.readouterr().out
    assert f"-m venv --clear {home / 'venv'}" in shown
    assert "pip install --disable-pip-version-check torch==2.9.1" in shown
    assert list(home.iterdir()) == []


def test_the_environment_may_lie_elsewhere(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["setup", "--dry-run", "--venv", str(home / "else where")]) == 0
    assert f"'{home / 'else where'}'" in capsys.readouterr().out


def test_two_sources_of_torch_contradict_each_other(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["setup", "--torch", "torch==2.9.1", "--use-torch", "/usr/bin/python3"]) == 1
    assert "contradict" in capsys.readouterr().err
