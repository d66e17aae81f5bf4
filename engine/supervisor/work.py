"""The work channel: hello and bye are answered here, the rest is checked and handed to the dispatcher."""

from __future__ import annotations

import hmac
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from ...protocol.codec import Envelope, decode, encode, peek
from ...protocol.errors import AuthError, EngineLostError, OutboardError, ProtocolError, VersionError
from ...protocol.failure import to_message
from ...protocol.messages import Message
from ...protocol.messages.adapters import LoraFile
from ...protocol.messages.client import Bye, CloseRun, Hello, Load, Predict, PutAdapters, PutBlob, Run
from ...protocol.messages.engine import Closed
from ...protocol.shm import Segments
from ...protocol.transport import Frame, Listener
from ...protocol.version import PROTOCOL_VERSION, compatible
from .catalog import Catalog
from .dispatch import Dispatcher
from .requests import Request
from .sessions import Session, Sessions
from .welcome import Door

log = logging.getLogger(__name__)


@dataclass(eq=False)
class WorkDesk:
    """Reads one message at a time from `listener`. `end_session` is told when a client leaves or is gone."""

    listener: Listener
    sessions: Sessions
    dispatcher: Dispatcher
    catalog: Catalog
    segments: Segments
    door: Door
    token: str
    end_session: Callable[[Session], None]

    def serve(self, peer: bytes, frames: Sequence[Frame]) -> None:
        """Handle one message; whatever is wrong with it is answered, never raised."""
        try:
            head = peek(frames)
        except ProtocolError as error:
            log.warning("unreadable message: %s", error.message)
            self._answer(peer, "", "", to_message(error))
            return
        try:
            self._handle(peer, head.id, head.session, head.type, frames)
        except OutboardError as error:
            self._answer(peer, head.id, head.session, to_message(error))

    def fail(self, peer: bytes, frames: Sequence[Frame], error: OutboardError) -> None:
        """Answer a message whose handling broke off; its request may be open."""
        head = peek(frames)
        request = self.dispatcher.open.get(f"{head.session}/{head.id}")
        if request is not None:
            self.dispatcher.fail(request, error)
        else:
            self._answer(peer, head.id, head.session, to_message(error))

    def _handle(self, peer: bytes, ident: str, session_id: str, kind: str, frames: Sequence[Frame]) -> None:
        if kind != Hello.type and self.sessions.hear(session_id) is None:
            raise EngineLostError(
                "This engine does not know the session: it was restarted, or the session has ended.",
                hint="Connect again; queue the prompt once more.",
            )
        message = decode(frames, opener=self.segments.opener(session_id) if session_id else None).message
        if isinstance(message, Hello):
            self._admit(peer, ident, message)
        elif isinstance(message, Bye):
            self._answer(peer, ident, session_id, Closed())
            self._end(session_id)
        elif isinstance(message, Load | Run | Predict):
            path = str(self.catalog.find(message.model))
            self.dispatcher.submit(self._request(peer, ident, session_id, message, frames, path))
        elif isinstance(message, PutBlob):
            self.dispatcher.submit(self._request(peer, ident, session_id, message, frames), bypass=True)
        elif isinstance(message, PutAdapters):
            files = [adapter for adapter in message.adapters if isinstance(adapter, LoraFile)]
            paths = [str(self.catalog.find(file)) for file in files]
            request = self._request(peer, ident, session_id, message, frames, files=paths)
            self.dispatcher.submit(request, bypass=True)
        elif isinstance(message, CloseRun):
            self.dispatcher.submit(self._request(peer, ident, session_id, message, frames))
        else:
            raise ProtocolError(f"A {kind} message has no place on the work channel.")

    def _admit(self, peer: bytes, ident: str, hello: Hello) -> None:
        if not compatible(PROTOCOL_VERSION, hello.protocol):
            raise VersionError(
                f"The client speaks protocol {hello.protocol}, this engine {PROTOCOL_VERSION}.",
                hint="Update the older of the two installations.",
            )
        if self.token and not hmac.compare_digest(self.token.encode(), hello.token.encode()):
            log.warning("client %s was refused: wrong token", hello.client)
            raise AuthError(
                "The engine's token was wrong or missing.",
                hint="Connect through the engine's registration file.",
            )
        self.door.knock(hello, partial(self._answer, peer, ident))

    def _request(
        self,
        peer: bytes,
        ident: str,
        session: str,
        message: Message,
        frames: Sequence[Frame],
        path: str = "",
        files: Sequence[str] = (),
    ) -> Request:
        send = partial(self._send, peer, session)
        return Request(session, ident, message.type, frames, send, path, files)

    def _answer(self, peer: bytes, ident: str, session: str, message: Message) -> None:
        self.listener.send(peer, encode(Envelope(message=message, id=ident, session=session)))

    def _send(self, peer: bytes, session_id: str, frames: Sequence[Frame]) -> None:
        """Send a reply; a client that is not there to take it has left without a bye."""
        if self.listener.send(peer, frames):
            self.sessions.hear(session_id)
        else:
            self._end(session_id)

    def _end(self, session_id: str) -> None:
        session = self.sessions.hear(session_id)
        if session is not None:
            self.end_session(session)
