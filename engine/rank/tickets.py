"""Tickets: the tasks a rank has been given, and which of them were taken back."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

from ...protocol.errors import CancelledError
from ...protocol.transport import Frame
from ..link import Task
from .peers import Peers


@dataclass(eq=False)
class Ticket:
    """One task with its frames; `cancelled` is set by the io thread and read by the main thread."""

    task: Task
    frames: Sequence[Frame]
    cancelled: threading.Event = field(default_factory=threading.Event)

    def check(self) -> None:
        """Raise CancelledError when this rank has heard that the client took the task back."""
        if self.cancelled.is_set():
            raise CancelledError("The request was cancelled.")

    def check_with(self, peers: Peers) -> None:
        """The same once one rank of a group has heard; every rank of it asks, and all decide alike."""
        if peers.any(self.cancelled.is_set()):
            raise CancelledError("The request was cancelled.")


class Tickets:
    """The open tickets by key; safe between the io thread and the main thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: dict[str, Ticket] = {}

    def open(self, ticket: Ticket) -> None:
        with self._lock:
            self._open[ticket.task.key] = ticket

    def close(self, ticket: Ticket) -> None:
        with self._lock:
            self._open.pop(ticket.task.key, None)

    def cancel(self, key: str) -> None:
        """Take back one task; it may have ended in the meantime."""
        with self._lock:
            ticket = self._open.get(key)
        if ticket is not None:
            ticket.cancelled.set()

    def cancel_all(self) -> None:
        with self._lock:
            tickets = list(self._open.values())
        for ticket in tickets:
            ticket.cancelled.set()
