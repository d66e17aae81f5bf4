"""What `outboard doctor` looks at: the machine, the package and the engine's Python, as findings."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import zmq

from ..protocol.errors import EngineStartError, OutboardError, VersionError
from ..protocol.release import release
from ..protocol.shm import shm_root
from ..protocol.version import PROTOCOL_VERSION
from .config import Environment
from .demo import assets
from .launch import find_python, running
from .paths import PACKAGE_ROOT, runtime_dir
from .probe import ENGINE_MODULES, Probe, probe
from .registry import read_registration

#: A latent and a conditioning of the largest models, a few times over.
SHM_WANTED = 256 * 2**20
REQUIREMENTS = PACKAGE_ROOT / "engine" / "requirements.txt"
_GIB = 2**30
_BOUND = re.compile(r"^([\w-]+)>=([\d.]+)$", re.MULTILINE)


@dataclass(frozen=True)
class Finding:
    """One line of the diagnosis; `remedy` says what to do when it is not `ok`."""

    check: str
    ok: bool
    found: str
    remedy: str = ""


def diagnose(environment: Environment) -> Iterator[Finding]:
    """Look at everything, the quick things first."""
    yield Finding("outboard", True, f"{release()}, protocol {PROTOCOL_VERSION}, in {PACKAGE_ROOT}")
    yield look_at_files()
    yield look_at_shared_memory()
    yield from look_at_runtime(environment)
    yield from look_at_python(environment)


def look_at_files() -> Finding:
    """The demo's own model, prompts and judge: what a clone without its large files lacks."""
    missing = [path.name for path in (assets.MODEL, assets.CONDITIONING, assets.JUDGE) if not path.is_file()]
    if missing:
        return Finding("shipped model", False, f"{', '.join(missing)} missing", "Install the package again.")
    return Finding("shipped model", True, str(assets.MODEL))


def look_at_shared_memory() -> Finding:
    root = shm_root()
    free = shutil.disk_usage(root).free
    found = f"{free / _GIB:.1f} GiB free in {root}"
    if free < SHM_WANTED:
        return Finding("shared memory", False, found, "Give it more room; in a container with --shm-size=1g.")
    return Finding("shared memory", True, found)


def look_at_runtime(environment: Environment) -> Iterator[Finding]:
    try:
        folder = runtime_dir(environment)
    except (EngineStartError, OSError) as error:
        yield Finding("runtime folder", False, str(error), "Set OUTBOARD_RUNTIME_DIR to your own folder.")
        return
    yield Finding("runtime folder", True, f"{folder}, this user's alone")
    yield _listen(folder)
    for path in sorted(folder.glob("*.json")):
        yield look_at_registration(path)


def look_at_registration(path: Path) -> Finding:
    """Whether the engine that `path` names answers. A dead one is no harm, but tells of a crash."""
    if read_registration(path) is None:
        return Finding("engine", False, f"{path} is not readable", "Remove that file.")
    try:
        found = running(path.parent, path.stem)
    except VersionError as error:
        return Finding("engine", False, error.message, error.hint)
    if found is None:
        return Finding("engine", True, f"none; {path} is what a dead one left behind")
    return Finding("engine", True, f"{found.engine} answers, pid {found.pid}")


def look_at_python(environment: Environment) -> Iterator[Finding]:
    try:
        python = find_python(environment)
        answer = probe(python, ENGINE_MODULES, require=False)
    except OutboardError as error:
        yield Finding("engine's Python", False, error.message, error.hint)
        return
    yield Finding("engine's Python", True, f"{answer.python}, {python}")
    yield from judge_libraries(answer, REQUIREMENTS.read_text(encoding="utf-8"))
    yield judge_device(answer, environment.device, driver=Path("/proc/driver/nvidia").exists())


def judge_libraries(answer: Probe, requirements: str) -> Iterator[Finding]:
    """One finding per library: missing, too old for `requirements`, or good."""
    bounds = dict(_BOUND.findall(requirements))
    for name, reason in answer.missing.items():
        yield Finding(name, False, f"cannot be imported: {reason}", "Run `outboard setup`.")
    for name, version in answer.versions.items():
        if version:
            good = _numbers(version) >= _numbers(bounds.get(name, "0"))
            wanted = "" if good else f"At least {bounds.get(name)} is needed: run `outboard setup`."
            yield Finding(name, good, version, wanted)


def judge_device(answer: Probe, wanted: str, *, driver: bool) -> Finding:
    """Whether the engine will compute where the user expects; `driver`: an NVIDIA driver is loaded."""
    if answer.devices:
        name, free, total = answer.devices[0]
        more = f" and {len(answer.devices) - 1} more" if len(answer.devices) > 1 else ""
        return Finding("device", True, f"{name}{more}, {free / _GIB:.1f} of {total / _GIB:.1f} GiB free")
    if wanted.startswith("cuda"):
        remedy = "Install a CUDA build of torch there, or set OUTBOARD_DEVICE=auto."
        return Finding("device", False, f"OUTBOARD_DEVICE={wanted}, but torch sees no CUDA device", remedy)
    if driver and wanted == "auto":
        remedy = "Run `outboard setup --torch SPEC` with a CUDA build, or set OUTBOARD_DEVICE=cpu."
        return Finding("device", False, "an NVIDIA driver is loaded, but torch sees no CUDA device", remedy)
    return Finding("device", True, "cpu")


def _listen(folder: Path) -> Finding:
    path = folder / "doctor.sock"
    try:
        with zmq.Context() as context, closing(context.socket(zmq.ROUTER)) as socket:
            socket.bind(f"ipc://{path}")
            socket.bind("tcp://127.0.0.1:*")
    except zmq.ZMQError as error:
        remedy = "Allow local sockets and loopback ports; OUTBOARD_RUNTIME_DIR must be a short path."
        return Finding("sockets", False, f"cannot listen: {error}", remedy)
    finally:
        path.unlink(missing_ok=True)
    return Finding("sockets", True, "local sockets and loopback ports can be opened")


def _numbers(version: str) -> list[int]:
    return [int(part) for part in re.findall(r"\d+", version)[:3]]
