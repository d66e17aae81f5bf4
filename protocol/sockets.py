"""Channels and listeners over ZeroMQ: a DEALER per client channel, a ROUTER per engine channel, no copies."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from typing import Any

import zmq

from .curve import Gate, KeyPair, check_bind, check_connect, identify
from .errors import AuthError, EngineLostError, EngineStartError
from .limits import DEFAULT
from .transport import Frame

_SEND_PATIENCE_MS = 5_000
_LINGER_MS = 500
#: Below this many bytes a copy costs less than keeping the sender's buffer alive.
_COPIED = 65_536

Context = zmq.Context[zmq.Socket[bytes]]


def _milliseconds(timeout: float | None) -> int:
    return -1 if timeout is None else max(0, ceil(timeout * 1000))


def _prepare(socket: zmq.Socket[bytes], endpoint: str) -> None:
    socket.linger = _LINGER_MS
    if endpoint.startswith("tcp://"):
        socket.setsockopt(zmq.TCP_KEEPALIVE, 1)
        socket.setsockopt(zmq.HEARTBEAT_IVL, 2_000)
        socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, 10_000)
        if "[" in endpoint:
            socket.setsockopt(zmq.IPV6, 1)


def _send(socket: zmq.Socket[bytes], frames: Sequence[Frame], flags: int = 0) -> None:
    """One message frame by frame, which takes half the time of send_multipart with small frames."""
    more, last = flags | zmq.SNDMORE, len(frames) - 1
    for index, frame in enumerate(frames):
        small = len(frame) < _COPIED
        socket.send(frame, more if index < last else flags, small)


class _Receiver:
    """Receives without copying, with the time-out kept in the socket, which is cheaper than a poller."""

    def __init__(self, socket: zmq.Socket[bytes]) -> None:
        self._socket = socket
        self._timeout: float | None = None

    def __call__(self, timeout: float | None) -> list[memoryview] | None:
        try:
            if timeout != self._timeout:
                self._socket.rcvtimeo = _milliseconds(timeout)
                self._timeout = timeout
            views = []
            more = True
            while more:
                frame = self._socket.recv(0, False)
                views.append(frame.buffer)
                more = frame.more
        except zmq.Again:
            return None
        except zmq.ZMQError as error:
            raise EngineLostError(f"the socket is closed: {error}") from error
        return views


class SocketChannel:
    """A client's DEALER. The peer need not be there yet; whether it is, a handshake says."""

    def __init__(
        self,
        endpoint: str,
        *,
        keys: KeyPair | None = None,
        server_key: str = "",
        context: Context | None = None,
    ) -> None:
        check_connect(endpoint, keys, server_key)
        self.endpoint = endpoint
        self._socket = (context or zmq.Context.instance()).socket(zmq.DEALER)
        _prepare(self._socket, endpoint)
        self._socket.sndtimeo = _SEND_PATIENCE_MS
        self._recv = _Receiver(self._socket)
        try:
            if keys is not None and server_key:
                identify(self._socket, keys, server_key)
            self._socket.connect(endpoint)
        except zmq.ZMQError as error:
            self._socket.close(0)
            raise EngineLostError(f"cannot connect to {endpoint}: {error}") from error

    @property
    def socket(self) -> Any:
        """The DEALER itself, for a poller."""
        return self._socket

    def send(self, frames: Sequence[Frame]) -> None:
        """Send one message; EngineLostError when nothing left within five seconds."""
        try:
            _send(self._socket, frames)
        except zmq.ZMQError as error:
            raise EngineLostError(f"the engine at {self.endpoint} takes no messages: {error}") from error

    def recv(self, timeout: float | None) -> list[memoryview] | None:
        """The next message as views of ZeroMQ's own buffers."""
        return self._recv(timeout)

    def close(self) -> None:
        """Close the socket; what was sent has half a second to leave."""
        self._socket.close()


class SocketListener:
    """An engine's ROUTER. Without a gate it opens only what no other machine can reach."""

    def __init__(
        self,
        endpoint: str,
        *,
        gate: Gate | None = None,
        context: Context | None = None,
        max_frame: int = DEFAULT.tensor,
    ) -> None:
        check_bind(endpoint, gate)
        if gate is not None and context not in (None, gate.context):
            raise AuthError("a guarded listener lives in its gate's context")
        self._socket = (gate.context if gate else context or zmq.Context.instance()).socket(zmq.ROUTER)
        _prepare(self._socket, endpoint)
        self._socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self._socket.setsockopt(zmq.MAXMSGSIZE, max_frame)
        self._recv = _Receiver(self._socket)
        try:
            if gate is not None:
                gate.guard(self._socket)
            self._socket.bind(endpoint)
        except zmq.ZMQError as error:
            self._socket.close(0)
            raise EngineStartError(f"cannot listen on {endpoint}: {error}") from error
        self._endpoint = self._socket.getsockopt_string(zmq.LAST_ENDPOINT)

    @property
    def endpoint(self) -> str:
        """Where clients connect, a wildcard port replaced by the real one."""
        return self._endpoint

    @property
    def socket(self) -> Any:
        """The ROUTER itself, for a poller."""
        return self._socket

    def send(self, peer: bytes, frames: Sequence[Frame]) -> bool:
        """Send one message without waiting; False when `peer` is gone or its queue is full."""
        try:
            _send(self._socket, [peer, *frames], zmq.NOBLOCK)
        except zmq.ZMQError as error:
            if error.errno in (zmq.EHOSTUNREACH, zmq.EAGAIN):
                return False
            raise EngineLostError(f"cannot send on {self._endpoint}: {error}") from error
        return True

    def recv(self, timeout: float | None) -> tuple[bytes, list[memoryview]] | None:
        """The next message and its peer's identity; tensor frames are views of ZeroMQ's own buffers."""
        views = self._recv(timeout)
        return None if views is None else (bytes(views[0]), views[1:])

    def close(self) -> None:
        """Close the socket; replies under way have half a second to leave."""
        self._socket.close()
