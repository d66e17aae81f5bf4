"""Lives and deaths: who starts, who ends with whom, and what is left behind (nothing)."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

import harness
from outboard.engine.launch import Engine, LaunchSpec, adopt_or_start, find_python, running
from outboard.engine.paths import START_SCRIPT
from outboard.engine.registry import (
    SHARED,
    Registration,
    read_registration,
    registration_path,
    write_registration,
)
from outboard.protocol.client import Client
from outboard.protocol.errors import EngineLostError, EngineStartError, VersionError
from outboard.protocol.messages import Message
from outboard.protocol.messages.control import Shutdown, ShuttingDown
from outboard.protocol.messages.engine import Result, Step

LONG = 4000
GONE = 10.0
#: A process that owns an engine, and says which once its ranks are up.
OWNER = """
import sys, time
import harness
engine = harness.start(owned=True)
client = harness.connect(engine)
print(engine.id, engine.process.pid, flush=True)
client.request(harness.run(4000))
"""


def assert_nothing_left(engine: str, processes: list[psutil.Process], folder: Path) -> None:
    took = harness.wait_until(lambda: all(map(harness.gone, processes)), GONE, "every process is gone")
    harness.wait_until(lambda: not harness.leftovers(engine, folder), GONE - took, "every file is gone")


def up(engine: Engine) -> list[psutil.Process]:
    """The engine's processes, once its ranks are ready."""
    client = harness.connect(engine)
    client.close()
    assert engine.process is not None
    return harness.family(engine.process.pid)


def run_and(client: Client, action: str, process: psutil.Process) -> tuple[float, BaseException]:
    """Signal `process` at the third step of a long run; seconds until the run's error, and the error."""
    at = [0.0]

    def act(event: Message) -> None:
        if isinstance(event, Step) and event.index == 2:
            at[0] = time.monotonic()
            process.send_signal(getattr(signal, action))

    with pytest.raises(EngineLostError) as caught:
        client.request(harness.run(LONG), on_event=act)
    return time.monotonic() - at[0], caught.value


def test_the_supervisor_is_up_within_a_second_and_has_no_torch(runtime: Path) -> None:
    best = 9.0
    for _ in range(3):
        began = time.monotonic()
        engine = harness.start()
        best = min(best, time.monotonic() - began)
        assert engine.process is not None
        maps = Path(f"/proc/{engine.process.pid}/maps").read_text() if sys.platform == "linux" else ""
        assert "torch" not in maps
        engine.stop()
    assert best < 1.0


def test_nothing_the_supervisor_imports_imports_torch() -> None:
    script = (
        "import sys, outboard.engine.supervisor.supervisor, outboard.engine.launch\n"
        "import outboard.engine.commands.serve, outboard.engine.rank.main\n"
        "import outboard.engine.commands.status, outboard.engine.commands.keys, outboard.engine.cli\n"
        "print([m for m in ('torch', 'numpy', 'diffusers', 'comfy') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_two_that_start_at_once_end_with_one_engine(runtime: Path) -> None:
    script = "import harness\nengine = harness.start()\nprint(engine.id, flush=True)\nengine.process = None"
    command = [sys.executable, "-W", "ignore", "-c", script]
    env = {**os.environ, "PYTHONPATH": str(Path(harness.__file__).parent)}
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env) for _ in range(2)]
    engines = {process.communicate(timeout=60)[0].strip() for process in both}
    assert len(engines) == 1 and "" not in engines
    found = running(runtime)
    assert found is not None and {found.engine} == engines
    ours = adopt_or_start(LaunchSpec(owned=True, device="cpu"))
    assert (ours.id, ours.process) == (found.engine, None)
    processes = harness.family(found.pid)
    client = harness.connect(ours)
    assert client.control(Shutdown()) == ShuttingDown()
    client.close()
    assert_nothing_left(found.engine, processes, runtime)


def test_two_threads_of_one_owner_get_one_engine(runtime: Path) -> None:
    engines: list[Engine] = []
    threads = [threading.Thread(target=lambda: engines.append(harness.start(owned=True))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert engines[0].id == engines[1].id
    assert sum(engine.process is not None for engine in engines) == 1
    for engine in engines:
        engine.stop()


def test_an_engine_for_another_device_is_not_adopted(runtime: Path) -> None:
    shared = harness.start()
    with pytest.raises(EngineStartError, match="cuda:1, dtype auto, any ranks were asked for"):
        adopt_or_start(LaunchSpec(owned=False, device="cuda:1"))
    shared.stop()


def stale(**changes: object) -> Registration:
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    base = Registration("dead", dead.pid, "tcp://127.0.0.1:9", "tcp://127.0.0.1:9", "0")
    return replace(base, **changes)  # type: ignore[arg-type]


def test_a_registration_of_a_dead_engine_is_replaced(runtime: Path) -> None:
    path = registration_path(runtime, SHARED)
    for old in (stale(), stale(pid=os.getpid()), stale(pid=os.getpid(), control="ipc:///nonexistent/a.sock")):
        write_registration(path, old)
        engine = harness.start()
        found = read_registration(path)
        assert found is not None and found.engine == engine.id != "dead"
        engine.stop()
    path.write_text("{ not json")
    engine = harness.start()
    engine.stop()


def test_a_living_engine_of_another_protocol_is_named(runtime: Path) -> None:
    write_registration(registration_path(runtime, SHARED), stale(pid=os.getpid(), protocol="9.0"))
    with pytest.raises(VersionError, match=r"9\.0.*2\.0"):
        harness.start()
    own = harness.start(owned=True)
    assert own.process is not None
    own.stop()


def test_a_killed_rank_is_reported_within_two_seconds_and_replaced(engine: Engine) -> None:
    client = harness.connect(engine)
    victim = psutil.Process(harness.status(client).ranks[0].pid)
    seconds, error = run_and(client, "SIGKILL", victim)
    assert seconds < 2.0
    assert isinstance(error, EngineLostError)
    assert error.details["exit_code"] == "-9" and error.details["rank"] == "0"
    assert "Rank 0" in error.message
    client.close()
    fresh = harness.connect(engine)
    assert isinstance(fresh.request(harness.run(2)), Result)
    assert harness.status(fresh).ranks[0].pid != victim.pid
    assert harness.status(fresh).counters["groups_lost"] >= 1
    fresh.close()


def test_a_killed_supervisor_takes_everything_with_it(runtime: Path) -> None:
    engine = harness.start()
    processes = up(engine)
    client = harness.connect(engine)
    run_and(client, "SIGKILL", processes[0])
    client.close()
    assert_nothing_left(engine.id, processes, runtime)


@pytest.mark.parametrize("action", ["SIGINT", "SIGTERM"])
def test_a_signal_while_sampling_ends_all_in_order(runtime: Path, action: str) -> None:
    engine = harness.start()
    processes = up(engine)
    client = harness.connect(engine)
    seconds, error = run_and(client, action, processes[0])
    assert seconds < 2.0 and action in str(error)
    client.close()
    assert_nothing_left(engine.id, processes, runtime)
    assert engine.process is not None and engine.process.wait(5) == 0
    assert "Traceback" not in (runtime / "shared.log").read_text()


def test_a_killed_owner_takes_its_engine_along(runtime: Path) -> None:
    env = {**os.environ, "PYTHONPATH": str(Path(harness.__file__).parent)}
    owner = subprocess.Popen([sys.executable, "-c", OWNER], stdout=subprocess.PIPE, text=True, env=env)
    assert owner.stdout is not None
    name, pid = owner.stdout.readline().split()
    processes = harness.family(int(pid))
    assert len(processes) == 2
    owner.kill()
    owner.wait()
    owner.stdout.close()
    assert_nothing_left(name, processes, runtime)


def test_a_shared_engine_ends_when_nobody_needs_it(runtime: Path) -> None:
    engine = harness.start("--idle-exit=0.5")
    assert engine.process is not None
    assert engine.process.wait(20) == 0
    assert harness.leftovers(engine.id, runtime) == []


def test_ranks_that_cannot_start_are_an_error_with_their_last_words(runtime: Path) -> None:
    engine = adopt_or_start(LaunchSpec(owned=False, device="cuda:77"))
    with pytest.raises(EngineStartError, match="no CUDA device 77"):
        harness.connect(engine)
    engine.stop()


def test_an_engine_that_cannot_start_says_why(runtime: Path) -> None:
    spec = LaunchSpec(owned=False, device="cpu", options=("--bind=tcp://0.0.0.0:7790",))
    with pytest.raises(EngineStartError, match="without keys"):
        adopt_or_start(spec)
    assert harness.leftovers("none", runtime) == []


def test_the_bare_folder_runs_without_installation(runtime: Path, tmp_path: Path) -> None:
    copy = tmp_path / "ComfyUI-Out.board"
    copy.symlink_to(START_SCRIPT.parents[1], target_is_directory=True)
    command = [sys.executable, "-I", str(copy / "engine" / "start.py"), "status", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, json.loads(done.stdout)) == (1, None)


def test_the_engines_python_is_named_or_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("OUTBOARD_HOME", str(tmp_path))
    monkeypatch.delenv("OUTBOARD_PYTHON", raising=False)
    assert find_python() == Path(sys.executable)
    monkeypatch.setenv("OUTBOARD_PYTHON", str(tmp_path / "python"))
    with pytest.raises(EngineStartError, match="no such file"):
        find_python()
    (tmp_path / "python").touch()
    assert find_python() == tmp_path / "python"
