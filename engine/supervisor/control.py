"""The control channel: cancel, status, unload, ping and shutdown, answered while the ranks compute."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from ...protocol.codec import Envelope, decode, encode, peek
from ...protocol.errors import AuthError, OutboardError, ProtocolError
from ...protocol.failure import to_message
from ...protocol.messages import Message
from ...protocol.messages.control import (
    Cancel,
    CancelReply,
    Ping,
    Pong,
    Shutdown,
    ShuttingDown,
    Status,
    StatusReport,
    Unload,
    Unloaded,
)
from ...protocol.transport import Frame, Listener
from .dispatch import Dispatcher
from .requests import Request
from .sessions import Sessions

log = logging.getLogger(__name__)


@dataclass(eq=False)
class ControlDesk:
    """Reads one message at a time from `listener`. Anybody may ping; the rest needs a session."""

    listener: Listener
    sessions: Sessions
    dispatcher: Dispatcher
    status: Callable[[], StatusReport]
    shut_down: Callable[[], None]

    def serve(self, peer: bytes, frames: Sequence[Frame]) -> None:
        """Handle one message; whatever is wrong with it is answered, never raised."""
        try:
            head = peek(frames)
        except ProtocolError as error:
            log.warning("unreadable control message: %s", error.message)
            return
        known = self.sessions.hear(head.session) is not None
        try:
            message = decode(frames).message
            if not known and not isinstance(message, Ping):
                raise AuthError(
                    "The control channel needs a session.", hint="Say hello on the work channel first."
                )
            answer = self._handle(peer, head.id, head.session, message)
        except OutboardError as error:
            answer = to_message(error)
        if answer is not None:
            self._send(peer, encode(Envelope(message=answer, id=head.id, session=head.session)))

    def fail(self, peer: bytes, frames: Sequence[Frame], error: OutboardError) -> None:
        """Answer a message whose handling broke off."""
        head = peek(frames)
        self._send(peer, encode(Envelope(message=to_message(error), id=head.id, session=head.session)))

    def _handle(self, peer: bytes, ident: str, session: str, message: Message) -> Message | None:
        if isinstance(message, Ping):
            return Pong()
        if isinstance(message, Cancel):
            return CancelReply(found=self.dispatcher.cancel(f"{session}/{message.request}"))
        if isinstance(message, Status):
            return self.status()
        if isinstance(message, Unload):
            return self._unload(peer, ident, session, message)
        if isinstance(message, Shutdown):
            self.shut_down()
            return ShuttingDown()
        raise ProtocolError(f"A {message.type} message has no place on the control channel.")

    def _unload(self, peer: bytes, ident: str, session: str, message: Unload) -> Message | None:
        if self.dispatcher.group.state != "ready":
            return Unloaded(bytes_freed=0)
        frames = encode(Envelope(message=message, id=ident, session=session))
        send = partial(self._send, peer)
        request = Request(session, ident, message.type, frames, send, channel="control/")
        self.dispatcher.submit(request, urgent=True)
        return None

    def _send(self, peer: bytes, frames: Sequence[Frame]) -> None:
        if not self.listener.send(peer, frames):
            log.info("the client that asked on the control channel is gone")
