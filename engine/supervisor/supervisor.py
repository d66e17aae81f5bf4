"""The supervisor: one process without torch that owns an engine's sockets, sessions, queue and ranks."""

from __future__ import annotations

import logging
import os
import secrets
import time
from pathlib import Path

import zmq

from ...protocol.curve import Gate, check_bind, load_keys
from ...protocol.errors import EngineLostError, InternalError, OutboardError
from ...protocol.release import release
from ...protocol.shm import Segments, engine_prefix, session_prefix, sweep, sweep_abandoned
from ...protocol.sockets import SocketListener
from ..config import EngineConfig
from ..registry import Registration, registration_path, remove_registration, write_registration
from .catalog import Catalog
from .control import ControlDesk
from .dispatch import Dispatcher
from .endpoints import Endpoints, local_endpoints, outward_endpoints
from .ranks import Group
from .sessions import Session, Sessions
from .status import StatusDesk
from .tether import Tether
from .welcome import Door
from .work import WorkDesk

POLL_MS = 50
HOUSE_EVERY = 0.05
SWEEP_EVERY = 60.0

Desk = WorkDesk | ControlDesk

log = logging.getLogger(__name__)


class Supervisor:
    """One engine: `listen`, then `run` until it must end, then `close`, whatever happened.

    `name` is its registration, `folder` the runtime folder.
    """

    def __init__(self, config: EngineConfig, folder: Path, name: str, engine: str) -> None:
        self._config = config
        self._engine = engine
        self._registration = registration_path(folder, name)
        self._token = secrets.token_hex(16)
        self._tether = Tether(config.life)
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._gate: Gate | None = None
        self._swept = self._kept = time.monotonic()
        self._endpoints = local_endpoints(folder, engine)
        self._ranks_socket, ranks_endpoint = _bind_ranks(self._context, self._endpoints)
        self._sessions = Sessions()
        self._segments = Segments(engine)
        group = Group(
            config,
            engine,
            ranks_endpoint,
            self._ranks_socket,
            self._endpoints.files,
            self._registration,
            folder / f"{engine}.meeting",
        )
        self._dispatcher = Dispatcher(group)
        self._status = StatusDesk(config, engine, release(), self._sessions, self._dispatcher)
        self._door = Door(
            config,
            engine,
            release(),
            self._sessions,
            self._dispatcher.revive,
            self._dispatcher.start_error,
        )
        self._catalog = Catalog(config.roots)
        self._poller = zmq.Poller()
        self._desks: dict[object, Desk] = {}

    def run(self) -> None:
        """Serve until a signal, the owner's end, a shutdown message or the idle time ends it."""
        self._dispatcher.revive()
        while not self._tether.check():
            self._turn()

    def listen(self) -> None:
        """Open the sockets and register, so that others find this engine."""
        self._poller.register(self._ranks_socket, zmq.POLLIN)
        local = self._open(self._endpoints.work, self._endpoints.control, self._token)
        if self._config.bind:
            self._open_outward(self._config.bind)
        registration = Registration(
            engine=self._engine,
            pid=os.getpid(),
            work=local[0],
            control=local[1],
            version=release(),
            token=self._token,
            device=self._config.device,
            dtype=self._config.dtype,
            ranks=self._config.ranks,
            layout=str(self._config.layout or ""),
            bind=self._config.bind,
        )
        write_registration(self._registration, registration)
        log.info("engine %s listens on %s %s", self._engine, local[0], self._config.bind)

    def _open(self, work: str, control: str, token: str) -> tuple[str, str]:
        """Open one pair of listeners and return where they really are."""
        work_listener = SocketListener(work, gate=self._gate, context=self._context)
        control_listener = SocketListener(control, gate=self._gate, context=self._context)
        work_desk = WorkDesk(
            work_listener,
            self._sessions,
            self._dispatcher,
            self._catalog,
            self._segments,
            self._door,
            token,
            self._end_session,
        )
        control_desk = ControlDesk(
            control_listener, self._sessions, self._dispatcher, self._status.report, self._shut_down
        )
        for desk in (work_desk, control_desk):
            self._desks[desk.listener.socket] = desk
            self._poller.register(desk.listener.socket, zmq.POLLIN)
        return work_listener.endpoint, control_listener.endpoint

    def _open_outward(self, bind: str) -> None:
        """Open the listeners other machines reach, behind CURVE; the keys stand in for the token there."""
        work, control = outward_endpoints(bind)
        keys = self._config.keys
        check_bind(work, keys)
        if keys is not None:
            self._gate = Gate(load_keys(keys / "server.key_secret"), keys / "clients", self._context)
        self._open(work, control, "" if keys else self._token)

    def _turn(self) -> None:
        # Control first: a cancel overtakes the work that is waiting to be read.
        ready = [socket for socket, _ in self._poller.poll(POLL_MS)]
        for socket in sorted(ready, key=lambda s: isinstance(self._desks.get(s), WorkDesk)):
            if socket is self._ranks_socket:
                self._hear_rank()
            else:
                self._serve(self._desks[socket])
        if time.monotonic() - self._kept >= HOUSE_EVERY:
            self._keep_house()

    def _serve(self, desk: Desk) -> None:
        received = desk.listener.recv(0.0)
        if received is None:
            return
        peer, frames = received
        try:
            desk.serve(peer, frames)
        except Exception as error:  # the process's one boundary: no message may end the engine
            log.exception("a message could not be handled")
            desk.fail(peer, frames, InternalError(f"The engine failed on a message: {error!r}"))

    def _hear_rank(self) -> None:
        identity, *frames = (part.buffer for part in self._ranks_socket.recv_multipart(copy=False))
        self._dispatcher.hear(bytes(identity), frames)
        ready = self._dispatcher.group.ready
        if ready is not None and self._dispatcher.group.state == "ready":
            self._door.open(ready)

    def _keep_house(self) -> None:
        """What nobody sends a message for: deaths, silence, and leftovers of the dead."""
        self._kept = now = time.monotonic()
        error = self._dispatcher.check()
        if error is not None and self._dispatcher.group.state == "dead":
            self._door.refuse(error)
        waiting = {request.session for request in self._dispatcher.open}
        for session in self._sessions.gone(waiting):
            log.info("session %s of %s has been silent for too long", session.id, session.client)
            self._end_session(session)
        if now - self._swept > SWEEP_EVERY:
            self._swept = now
            sweep_abandoned(engine_prefix(self._engine))
        idle = self._config.idle_exit
        if idle and not len(self._dispatcher.open) and now - self._sessions.quiet_since > idle:
            self._tether.cut = f"nobody has needed it for {idle:.0f} s"

    def _end_session(self, session: Session) -> None:
        self._sessions.close(session.id)
        self._dispatcher.end_session(session.id)
        self._segments.forget(session.id)
        sweep(session_prefix(self._engine, session.id))

    def _shut_down(self) -> None:
        self._tether.cut = "a client asked it to"

    def close(self) -> None:
        """Answer everybody, end the ranks, and leave nothing behind."""
        log.info("engine %s ends: %s", self._engine, self._tether.cut or "a fault of its own")
        error: OutboardError = EngineLostError(
            f"The engine was shut down: {self._tether.cut or 'a fault of its own'}.",
            hint="It starts again with the next load, or with `outboard serve`.",
        )
        self._door.refuse(error)
        self._dispatcher.fail_all(error)
        self._dispatcher.group.stop()
        remove_registration(self._registration, self._engine)
        for desk in self._desks.values():
            desk.listener.close()
        self._ranks_socket.close(0)
        if self._gate is not None:
            self._gate.close()
        self._context.term()
        for path in self._endpoints.files:
            path.unlink(missing_ok=True)
        sweep(engine_prefix(self._engine))


def _bind_ranks(
    context: zmq.Context[zmq.Socket[bytes]], endpoints: Endpoints
) -> tuple[zmq.Socket[bytes], str]:
    socket = context.socket(zmq.ROUTER)
    socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
    socket.set_hwm(0)
    socket.bind(endpoints.ranks)
    return socket, socket.getsockopt_string(zmq.LAST_ENDPOINT)
