"""The open requests: who waits for what, and the rule that each is answered to the end exactly once."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from ...protocol.codec import Envelope, encode
from ...protocol.errors import OutboardError
from ...protocol.failure import to_message
from ...protocol.messages import Message
from ...protocol.transport import Frame

Send = Callable[[Sequence[Frame]], None]
"""Puts frames on the way to the one client that asked."""

log = logging.getLogger(__name__)


@dataclass(eq=False)
class Request:
    """One request from the moment it is read to its terminal reply.

    `path` is the model file it needs, `files` its LoRA files; `channel` tells apart ids that a client uses on
    both of its channels.
    """

    session: str
    id: str
    type: str
    frames: Sequence[Frame]
    send: Send
    path: str = ""
    files: Sequence[str] = ()
    channel: str = ""
    state: Literal["queued", "running", "ended"] = "queued"
    received: float = field(default_factory=time.monotonic)
    told: str = ""
    told_at: float = field(default_factory=time.monotonic)

    @property
    def key(self) -> str:
        return f"{self.session}/{self.channel}{self.id}"

    def tell(self, message: Message) -> None:
        """Send `message` to whoever asked, under the request's id."""
        self.send(encode(Envelope(message=message, id=self.id, session=self.session)))


class OpenRequests:
    """Every request without its terminal reply. `finish` and `fail` are the only ways out."""

    def __init__(self) -> None:
        self._open: dict[str, Request] = {}

    def __len__(self) -> int:
        return len(self._open)

    def __iter__(self) -> Iterator[Request]:
        return iter(list(self._open.values()))

    def add(self, request: Request) -> bool:
        """Open `request`; False when its id is open already in its session: one reply then ends both."""
        if request.key in self._open:
            log.warning("request %s arrived twice; the second is dropped", request.key)
            return False
        self._open[request.key] = request
        return True

    def get(self, key: str) -> Request | None:
        return self._open.get(key)

    def of_session(self, session: str) -> list[Request]:
        return [request for request in self._open.values() if request.session == session]

    def finish(self, key: str, frames: Sequence[Frame]) -> Request | None:
        """Send the terminal reply and close the request; a second one is our bug: logged and dropped."""
        request = self._open.pop(key, None)
        if request is None:
            log.error("a second terminal reply to %s was dropped", key)
            return None
        request.state = "ended"
        request.send(frames)
        return request

    def answer(self, request: Request, message: Message) -> None:
        """`finish` with a message of the supervisor's own."""
        self.finish(request.key, encode(Envelope(message=message, id=request.id, session=request.session)))

    def fail(self, request: Request, error: OutboardError) -> None:
        """`finish` with an error."""
        self.answer(request, to_message(error))
