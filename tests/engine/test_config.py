"""Configuration, environment, paths, lock and registration."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from outboard.engine.config import EngineConfig, Environment, parse_bytes
from outboard.engine.environment import child_environment
from outboard.engine.lock import FileLock
from outboard.engine.paths import runtime_dir
from outboard.engine.registry import Registration, read_registration, remove_registration, write_registration
from outboard.protocol.errors import EngineStartError, InvalidRequestError


@pytest.mark.parametrize(
    "wrong",
    [
        {"device": "tpu"},
        {"device": "cuda:"},
        {"device": "cpu:1"},
        {"dtype": "int8"},
        {"ranks": 0},
        {"threads": -1},
        {"blob_budget": 0},
        {"roots": {"checkpoints": ()}},
    ],
)
def test_an_impossible_configuration_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequestError):
        EngineConfig(**{"roots": {}, **wrong})


def test_sizes_have_units() -> None:
    assert [parse_bytes(text) for text in ("12", "3K", "2m", "1G")] == [12, 3072, 2 * 2**20, 2**30]
    for wrong in ("", "G", "1T", "-1", "1.5G"):
        with pytest.raises(InvalidRequestError):
            parse_bytes(wrong)
    assert Environment({"OUTBOARD_BLOB_BUDGET": "2M"}).blob_budget == 2**21


def test_a_child_does_not_inherit_the_async_allocator() -> None:
    parent = {
        "PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync",
        "PYTORCH_ALLOC_CONF": "backend:cudaMallocAsync,expandable_segments:True",
        "PYTHONPATH": "/somewhere",
        "PATH": "/bin",
    }
    kept = child_environment(parent=parent, threads=3)
    assert "PYTORCH_CUDA_ALLOC_CONF" not in kept
    assert kept["PYTORCH_ALLOC_CONF"] == "expandable_segments:True"
    assert (kept["PYTHONPATH"], kept["OMP_NUM_THREADS"]) == ("/somewhere", "3")
    assert "PYTHONPATH" not in child_environment(parent=parent, other_python=True)


def test_the_runtime_folder_is_private(runtime: Path) -> None:
    runtime.chmod(0o755)
    assert runtime_dir() == runtime
    assert stat.S_IMODE(runtime.stat().st_mode) == 0o700
    (runtime / "link").symlink_to(runtime)
    with pytest.raises(EngineStartError, match="somebody else"):
        runtime_dir(Environment({"OUTBOARD_RUNTIME_DIR": str(runtime / "link")}))


def test_a_lock_holds_across_processes_and_dies_with_its_holder(tmp_path: Path) -> None:
    script = (
        "import sys, time; from pathlib import Path; from outboard.engine.lock import FileLock\n"
        "with FileLock(Path(sys.argv[1])): print('held', flush=True); time.sleep(60)"
    )
    path = tmp_path / "lock"
    command = [sys.executable, "-c", script, str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == "held\n"
        with pytest.raises(EngineStartError, match="has held"), FileLock(path, timeout=0.1):
            pytest.fail("two held the lock")
        holder.kill()
    with FileLock(path, timeout=5):
        assert path.exists()


def test_a_registration_is_private_and_only_its_engine_removes_it(tmp_path: Path) -> None:
    path = tmp_path / "shared.json"
    mine = Registration("mine", os.getpid(), "ipc:///w", "ipc:///c", "1", token="secret")
    write_registration(path, mine)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert read_registration(path) == mine
    remove_registration(path, "another")
    assert read_registration(path) == mine
    remove_registration(path, "mine")
    assert read_registration(path) is None
    for damaged in ("", "[]", '{"engine": 1}', '{"engine": "a", "pid": "1"}'):
        path.write_text(damaged)
        assert read_registration(path) is None
