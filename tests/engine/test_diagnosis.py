from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from outboard.engine import diagnosis
from outboard.engine.config import Environment
from outboard.engine.diagnosis import Finding
from outboard.engine.probe import Probe
from outboard.engine.registry import Registration, registration_path, write_registration

GOOD = Probe("3.11.7", {"torch": "2.13.0+cpu", "diffusers": "0.42.1"}, {}, [])
CUDA = Probe("3.11.7", {"torch": "2.13.0"}, {}, [("H200", 100 * 2**30, 140 * 2**30)])


def environment(folder: Path) -> Environment:
    return Environment({"OUTBOARD_RUNTIME_DIR": str(folder)})


def problems(findings: list[Finding]) -> list[str]:
    assert all(finding.remedy for finding in findings if not finding.ok), "a problem without a remedy"
    return [finding.check for finding in findings if not finding.ok]


def test_good_libraries_are_no_problem() -> None:
    assert problems(list(diagnosis.judge_libraries(GOOD, "torch>=2.6\ndiffusers>=0.38\n"))) == []


def test_an_old_library_is_a_problem() -> None:
    (torch, diffusers) = diagnosis.judge_libraries(GOOD, "torch>=2.14\ndiffusers>=0.42\n")
    assert problems([torch, diffusers]) == ["torch"]
    assert "2.14" in torch.remedy


def test_a_missing_library_is_a_problem_with_its_reason() -> None:
    answer = Probe("3.11.7", {}, {"diffusers": "No module named 'diffusers'"}, [])
    (finding,) = diagnosis.judge_libraries(answer, "")
    assert problems([finding]) == ["diffusers"]
    assert "No module named" in finding.found


@pytest.mark.parametrize(
    ("answer", "wanted", "driver", "ok"),
    [
        (CUDA, "auto", True, True),
        (GOOD, "auto", False, True),
        (GOOD, "auto", True, False),
        (GOOD, "cpu", True, True),
        (GOOD, "cuda:1", False, False),
    ],
)
def test_a_device_that_goes_unused_is_a_problem(answer: Probe, wanted: str, driver: bool, ok: bool) -> None:
    assert diagnosis.judge_device(answer, wanted, driver=driver).ok is ok


def test_a_fresh_runtime_folder_is_private_and_can_listen(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    findings = list(diagnosis.look_at_runtime(environment(folder)))
    assert problems(findings) == []
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert list(folder.iterdir()) == []


def test_a_runtime_folder_that_is_none_is_a_problem(tmp_path: Path) -> None:
    (tmp_path / "run").touch()
    assert problems(list(diagnosis.look_at_runtime(environment(tmp_path / "run")))) == ["runtime folder"]


def test_a_folder_too_deep_for_sockets_is_a_problem(tmp_path: Path) -> None:
    deep = tmp_path / ("x" * 100)
    assert problems(list(diagnosis.look_at_runtime(environment(deep)))) == ["sockets"]


def test_what_a_dead_engine_left_behind_is_no_problem(tmp_path: Path) -> None:
    ghost = Registration("e1", 1, f"ipc://{tmp_path}/w", f"ipc://{tmp_path}/c", version="1")
    write_registration(registration_path(tmp_path, "shared"), ghost)
    finding = diagnosis.look_at_registration(tmp_path / "shared.json")
    assert problems([finding]) == []
    assert "dead" in finding.found


def test_an_engine_of_another_protocol_is_a_problem(tmp_path: Path) -> None:
    (tmp_path / "c").touch()
    control = f"ipc://{tmp_path}/c"
    stranger = Registration("e1", os.getpid(), "ipc://w", control, version="9", protocol="9.0")
    write_registration(registration_path(tmp_path, "shared"), stranger)
    assert problems([diagnosis.look_at_registration(tmp_path / "shared.json")]) == ["engine"]


def test_an_unreadable_registration_is_a_problem(tmp_path: Path) -> None:
    (tmp_path / "shared.json").write_text("{", encoding="utf-8")
    assert problems([diagnosis.look_at_registration(tmp_path / "shared.json")]) == ["engine"]


def test_a_python_that_does_not_answer_is_a_problem() -> None:
    found = diagnosis.look_at_python(Environment({"OUTBOARD_PYTHON": "/bin/false"}))
    assert problems(list(found)) == ["engine's Python"]


def test_little_shared_memory_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(diagnosis, "SHM_WANTED", 2**60)
    assert problems([diagnosis.look_at_shared_memory()]) == ["shared memory"]


def test_a_missing_model_is_a_problem(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("outboard.engine.demo.assets.MODEL", tmp_path / "absent.safetensors")
    finding = diagnosis.look_at_files()
    assert problems([finding]) == ["shipped model"]
    assert "absent.safetensors" in finding.found
