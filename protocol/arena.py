"""A client's own shared memory: segments made on demand, lent to requests and replies, and used again."""

from __future__ import annotations

import os
import weakref
from collections import deque
from itertools import count
from pathlib import Path
from threading import Lock

from .errors import ProtocolError
from .messages.common import Slot
from .shm import ALIGNMENT, Segment, shm_root, sweep
from .tensors import flat
from .values import Place, WireTensor

_MIB = 1 << 20
#: Below this many bytes a frame is as quick as shared memory.
THRESHOLD = 1 << 16
_COMMON_SIZE = 8 * _MIB


def _sweep_own(pid: int, prefix: str, root: Path) -> None:
    """A forked child inherits the arena's finalizer, but not its segments."""
    if os.getpid() == pid:
        sweep(prefix, root)


class Arena:
    """Segments named `prefix` + number, at most `capacity` bytes of them; all gone at close, exit or loss."""

    def __init__(self, prefix: str, *, root: Path | None = None, capacity: int = 2 << 30) -> None:
        self._prefix = prefix
        self._root = root or shm_root()
        self._capacity = capacity
        self._numbers = count(1)
        self._all: list[Segment] = []
        self._free: list[Segment] = []
        self._returned: deque[Segment] = deque()
        self._lock = Lock()
        self._closed = False
        #: Why the last lease was not to be had.
        self.shortage = ""
        self._finalizer = weakref.finalize(self, _sweep_own, os.getpid(), prefix, self._root)

    @property
    def nbytes(self) -> int:
        """Bytes of all segments, lent or free."""
        return sum(segment.size for segment in self._all)

    def lease(self, nbytes: int) -> Segment | None:
        """A segment of at least `nbytes`, the caller's alone until `release`; None when there is no room."""
        with self._lock:
            if self._closed:
                return None
            while self._returned:
                self._free.append(self._returned.popleft())
            fitting = [segment for segment in self._free if segment.size >= nbytes]
            if not fitting:
                return self._create(-(-max(nbytes, 1) // _MIB) * _MIB)
            best = min(fitting, key=lambda segment: segment.size)
            self._free.remove(best)
            return best

    def release(self, segment: Segment) -> None:
        """Give a segment back for the next lease. Safe at any moment, from any thread and finalizer."""
        self._returned.append(segment)

    def discard(self, segment: Segment) -> None:
        """Give a segment up: the engine may still read or write it."""
        with self._lock:
            self._drop(segment)

    def close(self) -> None:
        """Remove every segment. Views that are still held stay readable."""
        with self._lock:
            self._closed = True
            for segment in list(self._all):
                self._drop(segment)
            self._free.clear()
        self._finalizer()

    def _create(self, size: int) -> Segment | None:
        if self.nbytes + size > self._capacity:
            while self._free:
                self._drop(self._free.pop())
        if self.nbytes + size > self._capacity:
            self.shortage = f"of the {self._capacity} bytes that a session may have, {self.nbytes} are in use"
            return None
        try:
            segment = Segment.create(self._root / f"{self._prefix}{next(self._numbers)}", size)
        except OSError as error:
            self.shortage = f"{self._root} has no room for {size} bytes ({error.strerror or error})"
            return None
        self._all.append(segment)
        return segment

    def _drop(self, segment: Segment) -> None:
        if segment in self._all:
            self._all.remove(segment)
            segment.unlink()


class Scope:
    """The shared memory of one request's tensors. Without an arena everything travels in frames."""

    def __init__(self, arena: Arena | None) -> None:
        self._arena = arena
        self._leases: list[Segment] = []
        self._next = 0

    def place(self, tensor: WireTensor) -> Place | None:
        """Copy `tensor` into shared memory if it is not there; None when it is small or there is no room."""
        if tensor.place is not None:
            return tensor.place
        if tensor.nbytes < THRESHOLD or self._arena is None:
            return None
        if not self._leases or self._next + tensor.nbytes > self._leases[-1].size:
            segment = self._arena.lease(max(tensor.nbytes, _COMMON_SIZE))
            if segment is None:
                return None
            self._leases.append(segment)
            self._next = 0
        segment, offset = self._leases[-1], self._next
        segment.view(offset, tensor.nbytes)[:] = flat(tensor.data)
        self._next = -(-(offset + tensor.nbytes) // ALIGNMENT) * ALIGNMENT
        return Place(segment.name, offset)

    def close(self, *, reusable: bool) -> None:
        """The request is over; not `reusable` when the engine may still read from it."""
        for segment in self._leases:
            if self._arena is not None:
                (self._arena.release if reusable else self._arena.discard)(segment)
        self._leases.clear()


class Slots:
    """Room for replies: each slot is a whole segment, free again when the last view of its tensor is gone."""

    def __init__(self, arena: Arena | None) -> None:
        self._arena = arena
        self._lent: dict[str, Segment] = {}

    def lend(self, nbytes: int) -> Slot | None:
        """A new slot, or None when there is no room or no shared memory."""
        segment = self._arena.lease(nbytes) if self._arena else None
        if segment is None:
            return None
        self._lent[segment.name] = segment
        return Slot(segment=segment.name, offset=0, nbytes=nbytes)

    def take(self, slot: Slot | None, name: str, offset: int, nbytes: int) -> memoryview:
        """The reply in `slot`, which ends here. ProtocolError when the engine names another place."""
        inside = slot is not None and name == slot.segment and offset + nbytes <= slot.nbytes
        segment = self._lent.pop(name, None) if inside else None
        if segment is None or self._arena is None:
            raise ProtocolError("the engine's reply lies in shared memory that was not lent to it")
        holder = segment.export(offset, nbytes)
        weakref.finalize(holder, self._arena.release, segment).atexit = False
        return memoryview(holder).cast("B")

    def end(self, slot: Slot | None, *, reusable: bool) -> None:
        """The request of `slot` is over; whatever was not taken is free, or given up."""
        segment = self._lent.pop(slot.segment, None) if slot else None
        if segment is not None and self._arena is not None:
            (self._arena.release if reusable else self._arena.discard)(segment)
