from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from commands.wheels import make_wheel
from outboard.engine.provision import BORROWED, MARKER, Completed, Plan, completed, describe, provision
from outboard.protocol.errors import EngineStartError, InvalidRequestError


def quiet(text: str) -> None:
    """Say nothing."""


@pytest.fixture
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of wheels that is all pip may install from."""
    folder = tmp_path / "shelf"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    return folder


@pytest.fixture(scope="module")
def venv(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One environment for the tests that do not care whether theirs is new."""
    return tmp_path_factory.mktemp("shared") / "venv"


def plan_for(venv: Path, requirement: str, *modules: str, borrows: bool = False) -> Plan:
    requirements = venv.parent / "requirements.txt"
    requirements.write_text(f"{requirement}\n", encoding="utf-8")
    return Plan(venv, borrows=borrows, requirements=(requirements,), modules=modules)


def test_goes_on_after_a_failed_install_and_then_marks_completion(tmp_path: Path, shelf: Path) -> None:
    plan = plan_for(tmp_path / "venv", "tinything>=1.0", "tinything")
    said: list[str] = []
    with pytest.raises(EngineStartError, match=r"pip install .*requirements\.txt"):
        provision(plan, said.append)
    assert any("-m venv" in line for line in said)
    assert not (plan.venv / MARKER).exists()
    assert completed(plan) is None

    make_wheel(shelf, "tinything", "1.5")
    said.clear()
    done = provision(plan, said.append)
    assert not any("-m venv" in line for line in said), "the environment of the first attempt is kept"
    assert done.versions == {"tinything": "1.5"}
    assert completed(plan) == done
    assert completed(Plan(**{**vars(plan), "python": Path("/bin/false")})) is None, "another Python, all anew"
    assert completed(plan_for(plan.venv, "tinything>=1.4", "tinything")) is None, (
        "other requirements, other plan"
    )


def test_an_environment_that_cannot_import_is_not_complete(venv: Path, shelf: Path) -> None:
    make_wheel(shelf, "tinything", "1.5")
    plan = plan_for(venv, "tinything", "tinything", "absent")
    with pytest.raises(EngineStartError, match="absent"):
        provision(plan, quiet)
    assert completed(plan) is None


def test_borrowed_packages_are_visible_and_not_installed_again(venv: Path, shelf: Path) -> None:
    plan = plan_for(venv, "pytest", "pytest", borrows=True)
    provision(plan, quiet)
    assert list(venv.rglob(BORROWED))
    where = "import pytest; print(pytest.__file__)"
    found = subprocess.run([str(plan.interpreter), "-c", where], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == pytest.__file__


def test_what_is_not_chosen_again_stays_as_it_is(tmp_path: Path) -> None:
    made = Plan(tmp_path, Path(sys.executable), "torch==2.9.1")
    done = Completed(made.fingerprint, made.torch, made.borrows, {})
    assert done.satisfies(made)
    assert done.satisfies(Plan(tmp_path))
    assert not done.satisfies(Plan(tmp_path, torch="torch==2.9.2"))
    assert not done.satisfies(Plan(tmp_path, borrows=True))


def test_a_folder_of_the_users_is_never_emptied(tmp_path: Path) -> None:
    plan = Plan(tmp_path / "venv")
    plan.venv.mkdir()
    (plan.venv / "thesis.txt").write_text("years of work", encoding="utf-8")
    with pytest.raises(InvalidRequestError, match="not a Python environment"):
        provision(plan, quiet)
    assert (plan.venv / "thesis.txt").exists()


def test_a_python_without_venv_is_told_apart(tmp_path: Path) -> None:
    plan = Plan(tmp_path / "venv", python=Path("/bin/false"), requirements=())
    with pytest.raises(EngineStartError, match="--python"):
        provision(plan, quiet)


def test_a_chosen_torch_is_installed_first_and_kept(tmp_path: Path) -> None:
    first, second = Plan(tmp_path / "venv", torch="torch==2.9.1").installs()
    assert first[-1] == second[-1] == "torch==2.9.1"
    assert "--requirement" not in first
    assert "--requirement" in second


def test_describe_shows_every_command_and_runs_none(tmp_path: Path) -> None:
    lines = describe(Plan(tmp_path / "venv", borrows=True))
    assert f"{sys.executable} -m venv" in lines[0]
    assert lines[1].startswith(f"# {BORROWED}")
    assert "engine/requirements.txt" in lines[-1]
    assert list(tmp_path.iterdir()) == []
