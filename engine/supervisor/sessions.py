"""The sessions: which clients are there, and which have gone without a word."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from ...protocol.messages.client import Hello

#: Seconds without a sign of life after which a session has ended. A client that waits hears from us or pings
#: every second; one that does not wait owes us nothing, and costs nothing either.
SILENT_WAITING = 30.0
SILENT_IDLE = 86400.0


@dataclass(eq=False)
class Session:
    """One client. `id` is also its proof: whoever knows it may use it. `heard` is its last sign of life."""

    id: str
    client: str
    host: str
    heard: float = field(default_factory=time.monotonic)


class Sessions:
    """The table of sessions, by id."""

    def __init__(self) -> None:
        self._sessions: dict[str, Session] = {}
        self.quiet_since = time.monotonic()

    def __len__(self) -> int:
        return len(self._sessions)

    def __iter__(self) -> Iterator[Session]:
        return iter(list(self._sessions.values()))

    def open(self, hello: Hello) -> Session:
        session = Session(secrets.token_hex(12), hello.client, hello.host)
        self._sessions[session.id] = session
        return session

    def hear(self, session_id: str) -> Session | None:
        """The session a message claims, marked as alive; None when there is none of that id."""
        session = self._sessions.get(session_id)
        if session is not None:
            session.heard = self.quiet_since = time.monotonic()
        return session

    def close(self, session_id: str) -> None:
        self._sessions.pop(session_id, None)

    def gone(self, waiting: set[str]) -> list[Session]:
        """Sessions silent for too long; those in `waiting` have open requests and ought to ping."""
        now = time.monotonic()
        return [s for s in self if now - s.heard > (SILENT_WAITING if s.id in waiting else SILENT_IDLE)]
