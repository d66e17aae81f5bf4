"""The rank's line to the supervisor: its thread stores blobs and hears cancels while the model computes."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Sequence

import zmq

from ...protocol.codec import Envelope, decode, encode
from ...protocol.errors import OutboardError, ProtocolError
from ...protocol.failure import to_message
from ...protocol.messages import Message
from ...protocol.messages.client import PutAdapters, PutBlob
from ...protocol.messages.engine import Stored
from ...protocol.shm import Segments
from ...protocol.transport import Frame
from ..link import Beat, CancelTask, Done, EndSession, Exit, RankSpec, Ready, Reply, Task, pack, unpack
from .adapters import AdapterStore
from .blobs import BlobStore
from .tickets import Ticket, Tickets

_OUTBOX = "inproc://outbox"
_SEND_TIMEOUT_MS = 2000
BEAT_EVERY = 1.0
"""Seconds between two signs of life, for a supervisor that has more than one rank to hear of."""


class Line:
    """The DEALER socket and its thread. The main thread takes work from `next` and speaks through `send`."""

    def __init__(self, spec: RankSpec, blobs: BlobStore, adapters: AdapterStore, segments: Segments) -> None:
        self._spec = spec
        self._blobs = blobs
        self._adapters = adapters
        self._segments = segments
        self._tickets = Tickets()
        self._inbox: queue.SimpleQueue[Ticket | EndSession | None] = queue.SimpleQueue()
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._outbox = self._context.socket(zmq.PAIR)
        self._outbox.bind(_OUTBOX)
        self._thread = threading.Thread(target=self._run, name="rank-io", daemon=True)

    def start(self, ready: Ready) -> None:
        """Connect, and tell the supervisor that this rank is ready."""
        self._thread.start()
        self.send(ready)

    def next(self) -> Ticket | EndSession | None:
        """Wait for the next command; None when the rank is to exit."""
        return self._inbox.get()

    def send(self, record: Ready | Reply | Done, frames: Sequence[Frame] = ()) -> None:
        """Main thread only: put a record and its frames on the way."""
        self._outbox.send_multipart(pack(record, frames), copy=False)

    def done(self, ticket: Ticket, record: Done) -> None:
        """Close `ticket`; the supervisor may send the next task."""
        self._tickets.close(ticket)
        self.send(record)

    def leave(self) -> None:
        """Any thread: take everything back and let `next` return None."""
        self._tickets.cancel_all()
        self._inbox.put(None)

    def close(self) -> None:
        """Deliver what was said last, then end the thread."""
        self._outbox.send(b"")
        self._thread.join()
        self._outbox.close(0)
        self._context.term()

    def _run(self) -> None:
        dealer = self._context.socket(zmq.DEALER)
        dealer.setsockopt(zmq.IDENTITY, self._spec.identity.encode())
        dealer.setsockopt(zmq.LINGER, _SEND_TIMEOUT_MS)
        dealer.set_hwm(0)
        dealer.connect(self._spec.endpoint)
        inner = self._context.socket(zmq.PAIR)
        inner.connect(_OUTBOX)
        poller = zmq.Poller()
        poller.register(dealer, zmq.POLLIN)
        poller.register(inner, zmq.POLLIN)
        open_, beat = True, 0.0
        while open_:
            if self._spec.world_size > 1 and time.monotonic() >= beat:
                beat = time.monotonic() + BEAT_EVERY
                dealer.send_multipart(pack(Beat()))
            for socket, _ in poller.poll(int(BEAT_EVERY * 1000)):
                frames = [part.buffer for part in socket.recv_multipart(copy=False)]
                if socket is dealer:
                    self._hear(dealer, frames)
                elif frames[0].nbytes:
                    dealer.send_multipart(frames, copy=False)
                else:
                    open_ = False
        dealer.close()
        inner.close()

    def _hear(self, dealer: zmq.Socket[bytes], frames: Sequence[Frame]) -> None:
        record, rest = unpack(frames)
        if isinstance(record, CancelTask):
            self._tickets.cancel(record.key)
        elif isinstance(record, Exit):
            self.leave()
        elif isinstance(record, EndSession):
            self._segments.forget(record.session)
            self._inbox.put(record)
        elif not isinstance(record, Task):
            raise ProtocolError(f"The supervisor sent {record.kind!r}, which only a rank may.")
        elif record.type in (PutBlob.type, PutAdapters.type):
            self._store(dealer, record, rest)
        else:
            ticket = Ticket(record, rest)
            self._tickets.open(ticket)
            self._inbox.put(ticket)

    def _store(self, dealer: zmq.Socket[bytes], task: Task, frames: Sequence[Frame]) -> None:
        try:
            message = decode(frames, opener=self._segments.opener(task.session)).message
            assert isinstance(message, PutBlob | PutAdapters)
            if isinstance(message, PutBlob):
                self._blobs.put(message.digest, message.tensor)
            else:
                self._adapters.put(message, task.files)
            answer: Message = Stored(digest=message.digest)
        except OutboardError as error:
            answer = to_message(error)
        if self._spec.rank == 0:
            reply = encode(Envelope(message=answer, id=task.id, session=task.session))
            dealer.send_multipart(pack(Reply(task.key, terminal=True), reply), copy=False)
