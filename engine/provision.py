"""The engine's own Python environment: which commands make it, and the marker that says it is complete."""

from __future__ import annotations

import hashlib
import json
import shlex
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from ..protocol.errors import CancelledError, EngineStartError, InvalidRequestError
from .environment import child_environment
from .paths import PACKAGE_ROOT
from .probe import ENGINE_MODULES, probe

REQUIREMENT_FILES = (PACKAGE_ROOT / "requirements.txt", PACKAGE_ROOT / "engine" / "requirements.txt")
MARKER = "outboard-setup.json"
MADE_FROM = "outboard-python.txt"
BORROWED = "outboard-borrowed.pth"

Say = Callable[[str], None]


@dataclass(frozen=True)
class Plan:
    """What the environment in `venv` shall be. What is not chosen stays as an earlier setup left it.

    python        the interpreter it is made from; None: not chosen, this one makes a new environment
    torch         a requirement such as "torch==2.9.1"; "" leaves the choice to pip
    borrows       the packages of `python` are visible in the environment, its torch among them
    requirements  the requirement files to satisfy
    modules       what must be importable before the environment counts as complete
    """

    venv: Path
    python: Path | None = None
    torch: str = ""
    borrows: bool = False
    requirements: tuple[Path, ...] = REQUIREMENT_FILES
    modules: tuple[str, ...] = ENGINE_MODULES

    @property
    def base(self) -> Path:
        return self.python or Path(sys.executable)

    @property
    def interpreter(self) -> Path:
        return self.venv / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")

    @property
    def fingerprint(self) -> str:
        """Digest of the requirements: another one means that there is something to install."""
        lines = "\0".join(file.read_text(encoding="utf-8") for file in self.requirements)
        return hashlib.blake2b(lines.encode(), digest_size=16).hexdigest()

    def installs(self) -> list[list[str]]:
        """The pip commands, in order."""
        pip = [str(self.interpreter), "-m", "pip", "install", "--disable-pip-version-check"]
        files = [part for file in self.requirements for part in ("--requirement", str(file))]
        return [[*pip, self.torch], [*pip, *files, self.torch]] if self.torch else [[*pip, *files]]


@dataclass(frozen=True)
class Completed:
    """The marker: written last, removed first, so that it never speaks of a half-made environment."""

    fingerprint: str
    torch: str
    borrows: bool
    versions: dict[str, str]

    def satisfies(self, plan: Plan) -> bool:
        """Whether what is installed is what `plan` asks for, as far as it asks."""
        return (
            self.fingerprint == plan.fingerprint
            and (not plan.torch or self.torch == plan.torch)
            and (not plan.borrows or self.borrows)
        )


def completed(plan: Plan) -> Completed | None:
    """The marker of a complete environment that satisfies `plan`, else None."""
    try:
        stored = Completed(**json.loads((plan.venv / MARKER).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None
    return stored if stored.satisfies(plan) and _is_kept(plan) else None


def describe(plan: Plan) -> list[str]:
    """The commands `provision` would run now, as a shell would take them."""
    making = [] if _is_kept(plan) else [shlex.join(_make_venv(plan))]
    borrowing = [f"# {BORROWED} in it names the packages of {plan.base}"] if plan.borrows else []
    return making + borrowing + [shlex.join(command) for command in plan.installs()]


def provision(plan: Plan, say: Say) -> Completed:
    """Make the environment, or go on where an earlier attempt stopped.

    Every command is shown through `say` and writes its own progress to the terminal. Raises EngineStartError
    naming the command that failed, CancelledError when the user interrupts; neither leaves a marker behind.
    """
    _require_ours(plan.venv)
    marker = plan.venv / MARKER
    marker.unlink(missing_ok=True)
    if not _is_kept(plan):
        _run(_make_venv(plan), say)
        (plan.venv / MADE_FROM).write_text(str(plan.base), encoding="utf-8")
    if plan.borrows:
        _borrow(plan, say)
    elif plan.torch:
        _give_back(plan)
    for command in plan.installs():
        _run(command, say)
    versions = probe(plan.interpreter, plan.modules).versions
    done = Completed(plan.fingerprint, plan.torch, plan.borrows, versions)
    draft = marker.with_suffix(".tmp")
    draft.write_text(json.dumps(asdict(done), indent=2), encoding="utf-8")
    draft.replace(marker)
    return done


def _require_ours(venv: Path) -> None:
    if venv.exists() and not (venv / "pyvenv.cfg").exists() and (not venv.is_dir() or any(venv.iterdir())):
        raise InvalidRequestError(
            f"{venv} exists and is not a Python environment.",
            hint="Name another folder with --venv, or empty it.",
        )


def _make_venv(plan: Plan) -> list[str]:
    return [str(plan.base), "-m", "venv", "--clear", str(plan.venv)]


def _is_kept(plan: Plan) -> bool:
    """Whether there is an environment that works, and is not made from another Python than the chosen one."""
    note = plan.venv / MADE_FROM
    if not note.exists() or (plan.python and note.read_text(encoding="utf-8") != str(plan.python)):
        return False
    command = [str(plan.interpreter), "-I", "-m", "pip", "--version"]
    return (
        plan.interpreter.exists()
        and subprocess.run(command, capture_output=True, check=False).returncode == 0
    )


def _borrow(plan: Plan, say: Say) -> None:
    """A .pth file: unlike --system-site-packages it also works when `base` lives in a venv itself."""
    file = Path(_site_packages(plan.interpreter)[0]) / BORROWED
    file.write_text("".join(f"{folder}\n" for folder in _site_packages(plan.base)), encoding="utf-8")
    say(f"{file}: packages of {plan.base} are visible")


def _give_back(plan: Plan) -> None:
    (Path(_site_packages(plan.interpreter)[0]) / BORROWED).unlink(missing_ok=True)


def _site_packages(python: Path) -> list[str]:
    code = (
        "import sysconfig; print(*dict.fromkeys(map(sysconfig.get_path, ('purelib', 'platlib'))), sep='\\n')"
    )
    try:
        answer = subprocess.run([str(python), "-I", "-c", code], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise EngineStartError(f"{python} is not a working Python.", hint="Check --use-torch.") from error
    return answer.stdout.splitlines()


def _run(command: Sequence[str], say: Say) -> None:
    say(f"$ {shlex.join(command)}")
    try:
        status = subprocess.run(command, env=child_environment(other_python=True), check=False).returncode
    except OSError as error:
        raise EngineStartError(
            f"{command[0]} cannot be run ({error.strerror}).", hint="Check --python."
        ) from error
    except KeyboardInterrupt:
        raise CancelledError(
            "Interrupted.", hint="Run `outboard setup` again; it goes on from here."
        ) from None
    if status:
        raise EngineStartError(
            f"This command ended with status {status}: {shlex.join(command)}", hint=_remedy(command)
        )


def _remedy(command: Sequence[str]) -> str:
    if "venv" in command:
        return (
            "This Python cannot make environments (an embedded one, or Debian's without python3-venv); "
            "name another with --python."
        )
    return "Its own messages are above. Then run `outboard setup` again; it goes on from here."
