"""Finding or starting an engine on this machine, so that all who ask at once end with the same one."""

from __future__ import annotations

import importlib.util
import logging
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..protocol.address import Address
from ..protocol.codec import Envelope, decode, encode
from ..protocol.errors import EngineStartError, OutboardError, VersionError
from ..protocol.messages.control import Ping, Pong
from ..protocol.sockets import SocketChannel
from ..protocol.version import PROTOCOL_VERSION, compatible
from .config import Environment
from .environment import child_environment
from .lock import FileLock
from .parallel.layout import Layout
from .paths import START_SCRIPT, engine_python, runtime_dir
from .registry import SHARED, Registration, owned_name, read_registration, registration_path
from .supervisor.endpoints import new_engine_id

START_TIMEOUT = 60.0
PROBE_TIMEOUT = 2.0
STOP_TIMEOUT = 10.0
MAX_LOG_BYTES = 4 * 2**20

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class LaunchSpec:
    """The engine that is wanted. `owned` ones live as long as this process; see EngineConfig for the rest.

    `python` None is `find_python()`; `adopt` False never uses an engine that runs already; `ranks` 0 is
    whatever such an engine has, else what `layout` makes; `options` are more arguments of `outboard serve`.
    """

    roots: Mapping[str, Sequence[Path]] = field(default_factory=dict)
    owned: bool = True
    device: str = "auto"
    dtype: str = "auto"
    python: Path | None = None
    adopt: bool = True
    ranks: int = 0
    layout: Layout | None = None
    options: Sequence[str] = ()


@dataclass(eq=False)
class Engine:
    """A running engine. Whoever started it holds its `process`; an owned one ends when this is let go."""

    id: str
    address: Address
    process: subprocess.Popen[bytes] | None = None

    def alive(self) -> bool:
        """False once the process started here has ended; an adopted engine is judged by its answers alone."""
        return self.process is None or self.process.poll() is None

    def stop(self) -> None:
        """End an engine that was started here, and wait until it is gone; an adopted one is left alone."""
        if self.process is None:
            return
        if self.process.stdin is not None:
            self.process.stdin.close()
        else:
            self.process.terminate()
        try:
            self.process.wait(STOP_TIMEOUT)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def adopt_or_start(spec: LaunchSpec) -> Engine:
    """The shared engine of this user if one runs that fits `spec`, else a new one, up and registered.

    An owned engine of this very process is found again too. The engine's ranks may still be starting: a
    client's hello waits for them. Raises EngineStartError, or VersionError for a shared engine of another
    protocol when a shared one is wanted.
    """
    folder = runtime_dir()
    with FileLock(folder / "start.lock"):
        found = _adopt(folder, SHARED, spec) if spec.adopt else None
        if found is None and spec.owned and spec.adopt:
            found = _adopt(folder, _own_name(spec), spec)
        return found or _start(folder, spec)


def running(folder: Path, name: str = SHARED) -> Registration | None:
    """The registration `name` if its engine answers; None when there is none, or it is stale.

    Raises VersionError when it speaks another protocol.
    """
    found = read_registration(registration_path(folder, name))
    if found is None or _surely_gone(found):
        return None
    if not compatible(PROTOCOL_VERSION, found.protocol):
        raise VersionError(
            f"The running engine (pid {found.pid}) speaks protocol {found.protocol}, "
            f"this side {PROTOCOL_VERSION}.",
            hint="End that engine, or update the older of the two installations.",
        )
    return found if _answers(found.address) else None


def find_python(environment: Environment | None = None) -> Path:
    """The interpreter to run the engine: OUTBOARD_PYTHON, else the venv of `outboard setup`, else this one.

    Raises EngineStartError when none of them can be expected to work.
    """
    settings = environment or Environment()
    if settings.python:
        if not Path(settings.python).is_file():
            raise EngineStartError(
                f"OUTBOARD_PYTHON is {settings.python}, and there is no such file.",
                hint="Correct or unset it.",
            )
        return Path(settings.python)
    made = engine_python(settings)
    if made.is_file():
        return made
    missing = [name for name in ("torch", "diffusers") if importlib.util.find_spec(name) is None]
    if missing:
        raise EngineStartError(
            f"The engine has no Python: {sys.executable} lacks {' and '.join(missing)}.",
            hint="Run `outboard setup`, or set OUTBOARD_PYTHON to an interpreter that has them.",
        )
    return Path(sys.executable)


def local_token(endpoint: str) -> str:
    """The token of this user's engine that `--bind`s to `endpoint`, "" when there is none."""
    found = (read_registration(path) for path in runtime_dir().glob("*.json"))
    return next((entry.token for entry in found if entry is not None and entry.bind == endpoint), "")


def _own_name(spec: LaunchSpec) -> str:
    return owned_name(os.getpid(), spec.device, spec.dtype, _group(spec.ranks, str(spec.layout or "")))


def _group(ranks: int, layout: str) -> str:
    return layout or (f"{ranks} rank(s)" if ranks else "any ranks")


def _adopt(folder: Path, name: str, spec: LaunchSpec) -> Engine | None:
    try:
        found = running(folder, name)
    except VersionError:
        if not spec.owned:
            raise
        log.warning("the shared engine speaks another protocol; starting an own one", exc_info=True)
        return None
    if found is None or _fits(found, spec):
        return Engine(found.engine, found.address) if found else None
    if spec.owned:
        return None
    raise EngineStartError(
        f"An engine for device {found.device}, dtype {found.dtype}, {_group(found.ranks, found.layout)} is "
        f"running (pid {found.pid}); device {spec.device}, dtype {spec.dtype}, "
        f"{_group(spec.ranks, str(spec.layout or ''))} were asked for.",
        hint="End it first (`outboard serve --stop`), or ask for what it has.",
    )


def _fits(found: Registration, spec: LaunchSpec) -> bool:
    return (
        spec.device in ("auto", found.device)
        and spec.dtype in ("auto", found.dtype)
        and spec.ranks in (0, found.ranks)
        and (spec.layout is None or str(spec.layout) == found.layout)
    )


def _surely_gone(found: Registration) -> bool:
    """Whether no handshake needs to be tried: the process is no more, or its socket file is not there."""
    if found.control.startswith("ipc://") and not Path(found.control.removeprefix("ipc://")).exists():
        return True
    if sys.platform == "win32":
        return False
    try:
        os.kill(found.pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return False


def _answers(address: Address) -> bool:
    """Whether a ping comes back. That a process exists proves nothing: it may be a zombie, or a stranger."""
    channel: SocketChannel | None = None
    try:
        channel = SocketChannel(address.control)
        channel.send(encode(Envelope(message=Ping(), id="probe")))
        frames = channel.recv(PROBE_TIMEOUT)
        return frames is not None and isinstance(decode(frames).message, Pong)
    except VersionError:
        raise
    except OutboardError:
        return False
    finally:
        if channel is not None:
            channel.close()


def _start(folder: Path, spec: LaunchSpec) -> Engine:
    python = spec.python or find_python()
    engine = new_engine_id()
    name = _own_name(spec) if spec.owned else SHARED
    log_path = folder / ("owned.log" if spec.owned else "shared.log")
    if log_path.exists() and log_path.stat().st_size > MAX_LOG_BYTES:
        log_path.unlink()
    with log_path.open("ab") as output:
        begin = output.tell()
        process = _spawn(
            [str(python), str(START_SCRIPT), *_arguments(spec, engine, name)], python, spec, output
        )
    try:
        registration = _await_registration(registration_path(folder, name), engine, process)
    except EngineStartError as error:
        process.kill()
        process.wait()
        said = _tail(log_path, begin)
        raise EngineStartError(
            f"{error.message} It said:\n{said}", hint=f"The whole log is {log_path}.", details={"log": said}
        ) from error
    return Engine(engine, registration.address, process)


def _arguments(spec: LaunchSpec, engine: str, name: str) -> list[str]:
    life = "owned" if spec.owned else "shared"
    roots = [f"--root={kind}={path}" for kind, paths in spec.roots.items() for path in paths]
    chosen = [f"--device={spec.device}", f"--dtype={spec.dtype}", f"--life={life}", f"--ranks={spec.ranks}"]
    if spec.layout is not None:
        chosen += spec.layout.arguments()
    return ["serve", *chosen, f"--engine-id={engine}", f"--register={name}", *roots, *spec.options]


def _spawn(command: list[str], python: Path, spec: LaunchSpec, output: Any) -> subprocess.Popen[bytes]:
    """Start a process of its own session: neither Ctrl-C nor a hang-up of the terminal reaches it."""
    windows = sys.platform == "win32"
    flags = ("CREATE_NEW_PROCESS_GROUP", "CREATE_NO_WINDOW")
    return subprocess.Popen(
        command,
        stdin=subprocess.PIPE if spec.owned else subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        env=child_environment(other_python=str(python) != sys.executable),
        start_new_session=not windows,
        creationflags=sum(getattr(subprocess, flag) for flag in flags) if windows else 0,
    )


def _await_registration(path: Path, engine: str, process: subprocess.Popen[bytes]) -> Registration:
    deadline = time.monotonic() + START_TIMEOUT
    while time.monotonic() < deadline:
        found = read_registration(path)
        if found is not None and found.engine == engine:
            return found
        code = process.poll()
        if code is not None:
            raise EngineStartError(f"The engine ended with exit code {code} before it was up.")
        time.sleep(0.01)
    raise EngineStartError(f"The engine was not up after {START_TIMEOUT:.0f} s.")


def _tail(path: Path, begin: int, limit: int = 4000) -> str:
    data = path.read_bytes()[begin:]
    return data[-limit:].decode("utf-8", "replace").strip()
