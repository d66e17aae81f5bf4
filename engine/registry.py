"""The registration file by which processes of one user find a running engine."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from ..protocol.address import Address
from ..protocol.version import PROTOCOL_VERSION

SHARED = "shared"


@dataclass(frozen=True)
class Registration:
    """One running engine: how to reach it, what it speaks, and what it was asked to be.

    `layout` in words; empty: the best for each request.
    """

    engine: str
    pid: int
    work: str
    control: str
    version: str
    token: str = ""
    server_key: str = ""
    protocol: str = PROTOCOL_VERSION
    device: str = "auto"
    dtype: str = "auto"
    ranks: int = 1
    layout: str = ""
    bind: str = ""

    @property
    def address(self) -> Address:
        return Address(self.work, self.control, self.token, self.server_key)


def owned_name(owner_pid: int, *choices: str) -> str:
    """The registration name of an engine that lives with process `owner_pid`, one for each choice."""
    words = (choice.replace(":", "-").replace(" ", "") for choice in choices if choice)
    return "-".join(("owned", str(owner_pid), *words))


def registration_path(folder: Path, name: str) -> Path:
    return folder / f"{name}.json"


def read_registration(path: Path) -> Registration | None:
    """What `path` says, or None when there is no such file or it is not a registration."""
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return _parse(stored)


def write_registration(path: Path, registration: Registration) -> None:
    """Put `registration` at `path` in one step, readable by its user alone: it holds the token."""
    draft = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        json.dump(asdict(registration), file)
    draft.replace(path)


def remove_registration(path: Path, engine: str) -> None:
    """Remove `path` if it still speaks of `engine`; a successor's registration stays."""
    found = read_registration(path)
    if found is not None and found.engine == engine:
        path.unlink(missing_ok=True)


def _parse(stored: object) -> Registration | None:
    if not isinstance(stored, dict):
        return None
    known = {field.name: stored[field.name] for field in fields(Registration) if field.name in stored}
    required = ("engine", "work", "control", "version")
    if not all(isinstance(known.get(name), str) for name in required) or not isinstance(
        known.get("pid"), int
    ):
        return None
    return Registration(**known)
