"""The tiny interface between messages as frames and whatever carries them.

A frame is a flat buffer. Frames given to `send` belong to the transport until the peer has answered: do
not write into them. Frames from `recv` belong to the receiver, and nobody else can see them change.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias

from .values import Place, WireTensor

Frame: TypeAlias = bytes | memoryview

#: Copies a tensor into shared memory and says where, or None: send it as a frame.
Placer: TypeAlias = Callable[[WireTensor], Place | None]
#: (segment, offset, nbytes) -> a view of those bytes; ProtocolError when there is no such place.
SegmentOpener: TypeAlias = Callable[[str, int, int], memoryview]


class Channel(Protocol):
    """A client's end: one engine at the other side."""

    def send(self, frames: Sequence[Frame]) -> None:
        """Hand one message over. Raises EngineLostError when the transport takes no more."""

    def recv(self, timeout: float | None) -> list[memoryview] | None:
        """The next message, or None when none came within `timeout` seconds (None: wait for ever)."""

    def close(self) -> None:
        """Let go of the transport; a message under way may still leave."""


class Listener(Protocol):
    """An engine's end: many peers, each with an identity the transport gave it."""

    @property
    def endpoint(self) -> str:
        """Where clients connect."""

    @property
    def socket(self) -> Any:
        """What zmq.Poller can register for POLLIN: a socket, or something with a fileno()."""

    def send(self, peer: bytes, frames: Sequence[Frame]) -> bool:
        """Hand one message over; False when `peer` is gone or takes no more."""

    def recv(self, timeout: float | None) -> tuple[bytes, list[memoryview]] | None:
        """The next message and whose it is, or None when none came within `timeout` seconds."""

    def close(self) -> None:
        """Stop listening."""
