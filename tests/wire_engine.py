"""An engine for the protocol's tests: a thread that answers what its test tells it to."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from threading import Event, Thread
from types import TracebackType

import zmq

from outboard.protocol.client import Client
from outboard.protocol.codec import Envelope, decode, encode, peek
from outboard.protocol.errors import CancelledError, MissingBlobError, OutboardError
from outboard.protocol.failure import to_message
from outboard.protocol.messages import Message, client, control, engine
from outboard.protocol.messages.common import Slot
from outboard.protocol.shm import Segments, host_identity, session_prefix, shm_root
from outboard.protocol.tensors import digest
from outboard.protocol.transport import Listener
from outboard.protocol.values import Blob, WireTensor, leaves
from wire_samples import MODEL, tensor

ENGINE, SESSION = "e1", "s1"
#: Elements of a tensor that goes through shared memory and into blobs.
LARGE = 1 << 17

#: Opens a session with an engine that a test scripts; see the fixture of the same name.
Session = Callable[..., AbstractContextManager[tuple[Client, "ScriptedEngine"]]]
#: What a test's engine answers to a message: events and the terminal reply, or nothing to leave it open.
Handler = Callable[[Message], list[Message]]


class InterruptError(Exception):
    """What a user's interrupt raises."""


def stop() -> None:
    raise InterruptError


def answer(*messages: Message) -> Handler:
    """Always the same answer."""
    return lambda _: list(messages)


def predict(x: WireTensor, reply: Slot | None = None, **conditioning: object) -> client.Predict:
    return client.Predict(
        run="r", model=MODEL, x=x, timestep=tensor(1), conditioning=conditioning, reply=reply
    )


def segments() -> list[str]:
    """The session's segments that exist."""
    return [path.name for path in shm_root().glob(f"{session_prefix(ENGINE, SESSION)}*")]


def echo(message: Message) -> list[Message]:
    assert isinstance(message, client.Predict)
    return [engine.Prediction(v=message.x, seconds=0.0)]


@dataclass
class ScriptedEngine:
    """Serves two listeners. `silent` stops every answer; `blobs` are those it holds; `seen` all requests."""

    work: Listener
    control: Listener
    handlers: Mapping[str, Handler] = field(default_factory=dict)
    shared_memory: bool = True
    token: str = ""
    silent: Event = field(default_factory=Event)
    seen: list[Message] = field(default_factory=list)
    blobs: dict[str, WireTensor] = field(default_factory=dict)
    open: dict[str, bytes] = field(default_factory=dict)
    failures: list[BaseException] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._segments = Segments(ENGINE)
        self._stop = Event()
        self._thread = Thread(target=self._serve)

    def __enter__(self) -> ScriptedEngine:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join(10)
        self.work.close()
        self.control.close()
        assert self.failures == []

    def types(self) -> list[str]:
        return [message.type for message in self.seen]

    def _serve(self) -> None:
        poller = zmq.Poller()
        for listener in (self.work, self.control):
            poller.register(listener.socket, zmq.POLLIN)
        while not self._stop.is_set():
            if poller.poll(10) and not self.silent.is_set():
                self._serve_one(self.control)
                self._serve_one(self.work)

    def _serve_one(self, listener: Listener) -> None:
        item = listener.recv(0)
        if item is None:
            return
        peer, frames = item
        head = peek(frames)
        try:
            message = decode(frames, opener=self._segments.opener(SESSION)).message
            replies = self._answer(message)
        except OutboardError as error:
            replies = [to_message(error)]
        if not any(reply.terminal for reply in replies):
            self.open[head.id] = peer
        for reply in replies:
            self._reply(listener, peer, head.id, message, reply)

    def _reply(self, listener: Listener, peer: bytes, ident: str, request: Message, reply: Message) -> None:
        slot = getattr(request, "reply", None)
        placer = self._segments.placer(SESSION, slot) if reply.terminal else None
        listener.send(peer, encode(Envelope(reply, ident, SESSION), placer))

    def _answer(self, message: Message) -> list[Message]:
        if not isinstance(message, control.Ping):
            self.seen.append(message)
        if message.type in self.handlers:
            return self.handlers[message.type](message)
        if isinstance(message, client.Hello):
            return [self._welcome()]
        if isinstance(message, client.PutBlob):
            return [self._store(message)]
        if isinstance(message, client.Predict):
            self._need(message)
            return echo(message)
        if isinstance(message, control.Cancel):
            return [control.CancelReply(found=self._cancel(message.request))]
        return [control.Pong() if isinstance(message, control.Ping) else engine.Closed()]

    def _welcome(self) -> engine.Welcome:
        limits = engine.Limits(header=1 << 20, tensor=1 << 30, message=1 << 31, blobs=1 << 30)
        host = host_identity() if self.shared_memory else ""
        return engine.Welcome(
            protocol="2.0", version="0", engine=ENGINE, session=SESSION, host=host, limits=limits
        )

    def _store(self, message: client.PutBlob) -> engine.Stored:
        assert digest(message.tensor) == message.digest
        self.blobs[message.digest] = message.tensor
        return engine.Stored(digest=message.digest)

    def _need(self, message: client.Predict) -> None:
        names = [leaf.digest for leaf in leaves(message.conditioning) if isinstance(leaf, Blob)]
        missing = [name for name in names if name not in self.blobs]
        if missing:
            raise MissingBlobError("blobs are missing", details={"digests": " ".join(missing)})

    def _cancel(self, ident: str) -> bool:
        peer = self.open.pop(ident, None)
        if peer is None:
            return False
        error = to_message(CancelledError("taken back"))
        return self.work.send(peer, encode(Envelope(error, ident, SESSION)))
