"""The client's control channel: questions from any thread, and the heartbeat that tells a lost engine."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from threading import Lock
from time import monotonic

from .codec import Envelope, decode, encode
from .errors import EngineLostError, InvalidRequestError
from .failure import from_message
from .messages import Message
from .messages.control import CONTROL_REQUESTS, Ping
from .messages.engine import Error
from .transport import Channel

_TICK = 0.02


class Lifeline:
    """Shares one control channel between threads: whoever waits receives, and hands on what is not theirs.

    `silence`: seconds after an unanswered ping without any sign of life until the engine counts as lost.
    """

    def __init__(
        self,
        channel: Channel,
        session: str,
        *,
        alive: Callable[[], bool] | None = None,
        silence: float = 6.0,
        interval: float = 1.0,
    ) -> None:
        self._channel = channel
        self._session = session
        self._alive = alive
        self._silence = silence
        self._interval = interval
        self._lock = Lock()
        self._numbers = count(1)
        self._replies: dict[str, Message | None] = {}
        self._heard = self._pinged = monotonic()
        self._unanswered: float | None = None

    def ask(self, message: Message, timeout: float) -> Message:
        """The reply to a control message; raises the engine's error, or EngineLostError after `timeout` s."""
        ident = self._enter(message)
        try:
            with self._lock:
                self._channel.send(encode(Envelope(message, ident, self._session)))
            return self._reply(ident, monotonic() + timeout)
        finally:
            del self._replies[ident]

    def tell(self, message: Message) -> None:
        """Send a control message whose reply does not matter."""
        with self._lock:
            self._channel.send(encode(Envelope(message, self._ident(), self._session)))

    def beat(self) -> None:
        """Call often while waiting for work: sends pings when due, and raises EngineLostError on silence."""
        if self._alive is not None and not self._alive():
            raise EngineLostError("the engine's process has ended", hint="Its log says why.")
        if not self._lock.acquire(blocking=False):
            return
        try:
            while self._receive(0.0):
                pass
            self._judge(monotonic())
        finally:
            self._lock.release()

    def heard(self) -> None:
        """Any message from the engine is a sign of life."""
        self._heard = monotonic()
        self._unanswered = None

    def close(self) -> None:
        """Close the channel, once nobody uses it."""
        with self._lock:
            self._channel.close()

    def _ident(self) -> str:
        return f"c{next(self._numbers)}"

    def _enter(self, message: Message) -> str:
        if not isinstance(message, CONTROL_REQUESTS):
            raise InvalidRequestError(f"{message.type} is no message of the control channel")
        ident = self._ident()
        self._replies[ident] = None
        return ident

    def _reply(self, ident: str, deadline: float) -> Message:
        while monotonic() < deadline:
            with self._lock:
                if self._replies[ident] is None:
                    self._receive(_TICK)
            reply = self._replies[ident]
            if isinstance(reply, Error):
                raise from_message(reply)
            if reply is not None:
                return reply
            if self._alive is not None and not self._alive():
                break
        raise EngineLostError("the engine does not answer on its control channel")

    def _receive(self, timeout: float) -> bool:
        frames = self._channel.recv(timeout)
        if frames is None:
            return False
        self.heard()
        envelope = decode(frames)
        if envelope.id in self._replies:
            self._replies[envelope.id] = envelope.message
        return True

    def _judge(self, now: float) -> None:
        if self._unanswered is not None and now - self._unanswered > self._silence:
            raise EngineLostError(f"the engine has been silent for {now - self._unanswered:.0f} seconds")
        if now - max(self._heard, self._pinged) >= self._interval:
            self._channel.send(encode(Envelope(Ping(), self._ident(), self._session)))
            self._pinged = now
            self._unanswered = now if self._unanswered is None else self._unanswered
