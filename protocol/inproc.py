"""The in-process twin of sockets.py: the same interface on queues, for tests and for embedding."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from itertools import count
from queue import Empty, SimpleQueue
from typing import Any

from .errors import EngineLostError
from .transport import Frame

Message = list[memoryview]


def _own(frames: Sequence[Frame]) -> Message:
    """Copies of `frames`, as a socket's receiver would own them."""
    return [memoryview(bytearray(frame)) for frame in frames]


class TwinChannel:
    """A client's end of a TwinListener."""

    def __init__(self, listener: TwinListener, peer: bytes) -> None:
        self._listener = listener
        self._peer = peer
        self._inbox: SimpleQueue[Message] = SimpleQueue()

    def send(self, frames: Sequence[Frame]) -> None:
        """Deliver one message to the listener."""
        self._listener.deliver(self._peer, _own(frames))

    def recv(self, timeout: float | None) -> Message | None:
        """The next message from the listener."""
        try:
            return self._inbox.get(timeout=timeout) if timeout != 0 else self._inbox.get_nowait()
        except Empty:
            return None

    def deliver(self, frames: Message) -> None:
        """Called by the listener."""
        self._inbox.put(frames)

    def close(self) -> None:
        """Leave the listener."""
        self._listener.forget(self._peer)


class TwinListener:
    """An engine's end; `connect` makes a channel to it."""

    def __init__(self, name: str = "twin") -> None:
        self._name = name
        self._inbox: SimpleQueue[tuple[bytes, Message]] = SimpleQueue()
        self._peers: dict[bytes, TwinChannel] = {}
        self._numbers = count(1)
        self._bell, self._ringer = socket.socketpair()
        self._open = True

    @property
    def endpoint(self) -> str:
        """A name for messages; nothing can connect to it from outside."""
        return f"twin://{self._name}"

    @property
    def socket(self) -> Any:
        """Readable whenever a message waits."""
        return self._bell

    def connect(self) -> TwinChannel:
        """A new peer of this listener."""
        peer = b"\0%d" % next(self._numbers)
        channel = self._peers[peer] = TwinChannel(self, peer)
        return channel

    def deliver(self, peer: bytes, frames: Message) -> None:
        """Called by a channel."""
        if not self._open:
            raise EngineLostError(f"nobody listens at {self.endpoint} any more")
        self._inbox.put((peer, frames))
        self._ringer.send(b"\0")

    def forget(self, peer: bytes) -> None:
        """Called by a channel that closes."""
        self._peers.pop(peer, None)

    def send(self, peer: bytes, frames: Sequence[Frame]) -> bool:
        """Deliver one message; False when `peer` has left."""
        channel = self._peers.get(peer)
        if channel is None:
            return False
        channel.deliver(_own(frames))
        return True

    def recv(self, timeout: float | None) -> tuple[bytes, Message] | None:
        """The next message and its peer's identity."""
        try:
            item = self._inbox.get(timeout=timeout) if timeout != 0 else self._inbox.get_nowait()
        except Empty:
            return None
        self._bell.recv(1)
        return item

    def close(self) -> None:
        """Stop listening."""
        self._open = False
        self._bell.close()
        self._ringer.close()
