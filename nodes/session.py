"""The live connection to one engine: opened at first need, opened again after the engine has died."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import TypeVar

from ..protocol.adapters import AdapterSet
from ..protocol.client import Client
from ..protocol.errors import EngineError, EngineLostError, OutboardError
from ..protocol.messages import Message
from ..protocol.messages.common import Slot
from ..protocol.messages.control import Ping, Status, StatusReport
from ..protocol.messages.engine import Welcome
from ..protocol.shelf import Shelf
from ..protocol.shm import host_identity
from ..protocol.values import Tree
from . import engines, interrupt
from .choice import AUTO, EngineChoice

PING_TIMEOUT = 2.0

Result = TypeVar("Result")


def _ignore(event: Message) -> None:
    """An event nobody asked for."""


class Session:
    """One engine as this ComfyUI uses it. `generation` counts connections; a new engine holds nothing."""

    def __init__(self, choice: EngineChoice) -> None:
        self.choice = choice
        self.generation = 0
        self._client: Client | None = None
        self._lock = threading.Lock()

    @property
    def connected(self) -> bool:
        return self._client is not None

    @property
    def welcome(self) -> Welcome:
        """What the engine said of itself; connects when there is no connection."""
        return self.client().welcome

    @property
    def on_this_machine(self) -> bool:
        return bool(self.welcome.host) and self.welcome.host == host_identity()

    def client(self) -> Client:
        """The open connection, made now if need be. Raises EngineStartError, EngineLostError, AuthError."""
        with self._lock:
            if self._client is None:
                with interrupt.translated():
                    self._client = engines.connect(self.choice)
                self.generation += 1
            return self._client

    def ensure(self) -> None:
        """Make sure that the engine answers, with a new connection if the old one does not."""
        try:
            self.client().control(Ping(), timeout=PING_TIMEOUT)
        except EngineError:
            self.drop()
            self.client()

    def drop(self) -> None:
        """Close the connection; the next use opens another."""
        with self._lock:
            client, self._client = self._client, None
        if client is not None:
            with suppress(OutboardError):
                client.close()

    def request(
        self,
        message: Message,
        *,
        on_event: Callable[[Message], None] = _ignore,
        poll: Callable[[], None] | None = interrupt.check,
    ) -> Message:
        """Ask for work; while waiting, `poll` may raise, as the user's interrupt does, and cancels it."""
        return self._using(lambda client: client.request(message, on_event=on_event, poll=poll))

    def control(self, message: Message, *, timeout: float) -> Message:
        return self._using(lambda client: client.control(message, timeout=timeout))

    def status(self) -> StatusReport | None:
        """The engine's state; None without a connection, which this never opens."""
        if not self.connected:
            return None
        found = self.control(Status(), timeout=PING_TIMEOUT)
        return found if isinstance(found, StatusReport) else None

    def intern(self, tree: Tree) -> Tree:
        """`tree` with its large tensors stored at the engine."""
        return self._using(lambda client: client.intern(tree, poll=interrupt.check))

    def shelf(self) -> Shelf | None:
        """Shared memory for tensors that stay from request to request, None for another machine's engine."""
        return self._using(lambda client: client.shelf())

    def adapt(self, adapters: AdapterSet) -> str:
        """What `adapters` are called at the engine, which holds them from now on."""
        with interrupt.translated():
            return self._using(lambda client: client.adapt(adapters, poll=interrupt.check))

    def slot(self, nbytes: int) -> Slot | None:
        """Room in shared memory for one reply, None when the engine is on another machine."""
        return self.client().reply_slot(nbytes)

    def _using(self, use: Callable[[Client], Result]) -> Result:
        client = self.client()
        try:
            return use(client)
        except EngineLostError:
            self.drop()
            raise


class Sessions:
    """One session per engine choice, for the life of this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sessions: dict[EngineChoice, Session] = {}

    def of(self, choice: EngineChoice) -> Session:
        """The session of that engine; the dtype is each model's own and makes no other engine."""
        with self._lock:
            key = replace(choice, dtype=AUTO)
            return self._sessions.setdefault(key, Session(choice))

    def all(self) -> list[Session]:
        with self._lock:
            return list(self._sessions.values())


SESSIONS = Sessions()
