"""Where an engine listens, and which of those places other machines can reach."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from ipaddress import ip_address

from .errors import ProtocolError

_TCP = re.compile(r"tcp://(?P<host>\[[0-9A-Fa-f:.]+\]|\*|[A-Za-z0-9_.-]+):(?P<port>[0-9]{1,5}|\*)")
_IPC = re.compile(r"ipc://[^\0]+")


@dataclass(frozen=True)
class Address:
    """An engine's two endpoints, the token a local client shows, and the engine's public CURVE key (Z85).

    Endpoints are ipc://path or tcp://host:port. `server_key` is empty where no CURVE is used.
    """

    work: str
    control: str
    token: str = field(default="", repr=False)
    server_key: str = ""


def check_endpoint(endpoint: str) -> None:
    """Raise ProtocolError unless `endpoint` is ipc://path or tcp://host:port."""
    if not _TCP.fullmatch(endpoint) and not _IPC.fullmatch(endpoint):
        raise ProtocolError(
            f"{endpoint[:200]!r} is no endpoint", hint="Use ipc://path or tcp://host:port, for example."
        )


def is_loopback(endpoint: str) -> bool:
    """Whether only this machine can reach `endpoint`. Names other than localhost count as reachable."""
    check_endpoint(endpoint)
    match = _TCP.fullmatch(endpoint)
    if match is None:
        return True
    host = match["host"].strip("[]")
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
