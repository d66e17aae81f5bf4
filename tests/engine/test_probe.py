from __future__ import annotations

import sys
from pathlib import Path

import pytest

from outboard.engine.probe import probe
from outboard.protocol.errors import EngineStartError

PYTHON = Path(sys.executable)


def test_reports_versions_and_what_is_missing() -> None:
    found = probe(PYTHON, ["msgpack", "no_such_module"], require=False)
    assert found.python.count(".") == 2
    assert list(found.versions) == ["msgpack"]
    assert "no_such_module" in found.missing["no_such_module"]
    assert found.devices == [], "torch was not asked for, so no device is known"


def test_a_missing_required_module_is_an_error_naming_it() -> None:
    with pytest.raises(EngineStartError, match="no_such_module"):
        probe(PYTHON, ["no_such_module"])


def test_the_current_folder_lends_no_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "stray.py").touch()
    monkeypatch.chdir(tmp_path)
    assert "stray" in probe(PYTHON, ["stray"], require=False).missing


def test_something_that_is_no_python_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(EngineStartError, match="does not answer"):
        probe(tmp_path / "absent", [])
    with pytest.raises(EngineStartError, match="failed"):
        probe(Path("/bin/false"), [])
