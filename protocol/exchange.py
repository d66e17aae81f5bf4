"""The client's work channel: one request at a time, from its frames to its terminal reply."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from itertools import count
from threading import Lock
from time import monotonic

from .arena import Arena, Scope, Slots
from .codec import Envelope, decode, encode, peek
from .errors import EngineLostError, OutboardError
from .lifeline import Lifeline
from .limits import WireLimits
from .messages import Message
from .messages.client import Bye
from .messages.common import Slot
from .messages.control import Cancel
from .shelf import Shelf
from .transport import Channel

_TICK = 0.01

OnEvent = Callable[[Message], None]
Poll = Callable[[], None]


def _nothing(_: Message) -> None:
    """What happens to events nobody asked for."""


class Exchange:
    """Owns the work channel and the session's shared memory; `patience` s is given to a cancelled request."""

    def __init__(
        self,
        channel: Channel,
        line: Lifeline,
        session: str,
        limits: WireLimits,
        arena: Arena | None,
        patience: float,
    ) -> None:
        self.slots = Slots(arena)
        self.ended = ""
        self._channel = channel
        self._line = line
        self._session = session
        self._limits = limits
        self._arena = arena
        self._patience = patience
        self._numbers = count(1)
        self._lock = Lock()

    def check(self) -> None:
        """Raise EngineLostError when the session has ended."""
        if self.ended:
            raise EngineLostError(f"the session has ended: {self.ended}")

    def shelf(self) -> Shelf | None:
        """A shelf in the session's shared memory, None when there is none."""
        return Shelf(self._arena) if self._arena is not None else None

    @contextmanager
    def turn(self, poll: Poll | None) -> Iterator[None]:
        """Wait for the channel, polling meanwhile. Raises EngineLostError when the session has ended."""
        while not self._lock.acquire(timeout=_TICK):
            if poll:
                poll()
        try:
            with self._until_lost():
                self.check()
            yield
        finally:
            self._lock.release()

    @contextmanager
    def _until_lost(self) -> Iterator[None]:
        """An engine that is lost in here ends the session."""
        try:
            yield
        except EngineLostError as lost:
            self.ended = self.ended or lost.message
            self._tear_down()
            raise

    def run(
        self, message: Message, slot: Slot | None, on_event: OnEvent | None, poll: Poll | None
    ) -> Message:
        """Send `message` and return its terminal reply, also when that is an error. Needs the turn."""
        with self._until_lost():
            return self._attempt(message, slot, on_event, poll)

    def _attempt(
        self, message: Message, slot: Slot | None, on_event: OnEvent | None, poll: Poll | None
    ) -> Message:
        ident = f"r{next(self._numbers)}"
        scope = Scope(self._arena)
        settled = False
        try:
            self._channel.send(encode(Envelope(message, ident, self._session), scope.place, self._limits))
            reply = self._wait(ident, slot, on_event or _nothing, poll)
            settled = True
        finally:
            settled = settled or self._take_back(ident)
            scope.close(reusable=settled)
            if not settled:
                self.slots.end(slot, reusable=False)
        return reply

    def end(self, reason: str) -> None:
        """End the session: at once, or at its next tick when a request is under way in another thread."""
        polite = not self.ended
        self.ended = self.ended or reason
        if self._lock.acquire(timeout=1.0):
            try:
                if polite:
                    self._say_bye()
                self._tear_down()
            finally:
                self._lock.release()

    def _wait(self, ident: str, slot: Slot | None, on_event: OnEvent, poll: Poll | None) -> Message:
        while True:
            message = self._receive(ident, slot)
            if message is not None:
                if message.terminal:
                    return message
                on_event(message)
            self.check()
            self._line.beat()
            if poll:
                poll()

    def _receive(self, ident: str, slot: Slot | None) -> Message | None:
        """The next message of this request; replies to requests given up earlier are dropped unread."""
        frames = self._channel.recv(_TICK)
        if frames is None:
            return None
        self._line.heard()
        if peek(frames).id not in (ident, ""):
            return None
        return decode(frames, opener=partial(self.slots.take, slot)).message

    def _take_back(self, ident: str) -> bool:
        """Cancel a request and see it end. False when it did not, or when nobody is there to end it."""
        deadline = monotonic() + self._patience

        def in_time() -> None:
            if monotonic() > deadline:
                raise EngineLostError("the engine did not end a cancelled request in time")

        with suppress(OutboardError):
            self._line.beat()
            self._line.tell(Cancel(request=ident))
            self._wait(ident, None, _nothing, in_time)
            return True
        return False

    def _say_bye(self) -> None:
        with suppress(OutboardError):
            self._channel.send(encode(Envelope(Bye(), "bye", self._session)))

    def _tear_down(self) -> None:
        self._channel.close()
        self._line.close()
        if self._arena is not None:
            self._arena.close()
