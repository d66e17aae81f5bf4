"""Where an engine's files lie: the package itself, what is made once, and what lives as long as an engine."""

from __future__ import annotations

import os
import stat
import sys
import tempfile
from pathlib import Path

from ..protocol.errors import EngineStartError
from .config import Environment
from .demo.assets import MODEL_ROOT

PACKAGE_ROOT = Path(__file__).resolve().parents[1]
START_SCRIPT = Path(__file__).resolve().parent / "start.py"
SHIPPED_ROOTS = {"diffusion_models": (MODEL_ROOT,)}

#: Longest path a UNIX socket may have, its terminating zero included (macOS; Linux has 108).
MAX_SOCKET_PATH = 104


def runtime_dir(environment: Environment | None = None) -> Path:
    """This user's private folder for sockets, locks, registrations and logs; made when missing.

    It is not under XDG_RUNTIME_DIR, which vanishes at logout while a shared engine lives on.
    Raises EngineStartError when somebody else owns it.
    """
    named = (environment or Environment()).runtime_dir
    folder = Path(named) if named else Path(tempfile.gettempdir()) / f"outboard-{_user()}"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    _require_private(folder)
    return folder


def home_dir(environment: Environment | None = None) -> Path:
    """Where things made once lie (the engine's own venv, keys); not made here."""
    named = (environment or Environment()).home
    return Path(named) if named else Path.home() / ".outboard"


def engine_python(environment: Environment | None = None) -> Path:
    """The interpreter of the venv that `outboard setup` makes, whether or not it exists."""
    venv = home_dir(environment) / "venv"
    return venv / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")


def keys_dir(environment: Environment | None = None) -> Path:
    """Where `outboard keys` writes by default."""
    return home_dir(environment) / "keys"


def _user() -> str:
    return str(os.getuid()) if hasattr(os, "getuid") else os.environ.get("USERNAME", "user")


def _require_private(folder: Path) -> None:
    if not hasattr(os, "getuid"):
        return
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise EngineStartError(
            f"The runtime folder {folder} belongs to somebody else.",
            hint="Set OUTBOARD_RUNTIME_DIR to a folder of your own.",
        )
    if found.st_mode & 0o077:
        folder.chmod(0o700)
