"""Where an engine listens: sockets in the private runtime folder, or loopback ports where those cannot be."""

from __future__ import annotations

import secrets
import sys
from dataclasses import dataclass
from pathlib import Path

from ...protocol.errors import InvalidRequestError
from ..paths import MAX_SOCKET_PATH


@dataclass(frozen=True)
class Endpoints:
    """One engine's local endpoints; `files` are the socket files behind them, to be removed at its end."""

    work: str
    control: str
    ranks: str
    files: tuple[Path, ...]


def local_endpoints(folder: Path, engine: str) -> Endpoints:
    """UNIX sockets named after the engine; loopback ports on Windows or where the path is too long."""
    names = [folder / f"{engine}.{channel}.sock" for channel in ("work", "control", "ranks")]
    if sys.platform == "win32" or any(len(str(path).encode()) >= MAX_SOCKET_PATH for path in names):
        wild = "tcp://127.0.0.1:*"
        return Endpoints(wild, wild, wild, ())
    work, control, ranks = (f"ipc://{path}" for path in names)
    return Endpoints(work, control, ranks, tuple(names))


def outward_endpoints(bind: str) -> tuple[str, str]:
    """`tcp://host:port` -> the endpoints for work (that port) and for control (the next one)."""
    stem, _, port = bind.rpartition(":")
    if not stem.startswith("tcp://") or not port.isdigit() or not 0 < int(port) < 65535:
        raise InvalidRequestError(
            f"{bind!r} is no address to bind.", hint="Use tcp://<host>:<port>, for example."
        )
    return bind, f"{stem}:{int(port) + 1}"


def new_engine_id() -> str:
    """An id that no other engine has; it names sockets and shared memory."""
    return secrets.token_hex(6)
