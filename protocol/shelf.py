"""Tensors that stay in shared memory from message to message, so that an unchanged one is not sent again.

The very object that was copied before is presumed unchanged, and the message leaves at once. Whether its
bytes are still those in shared memory is looked up while the engine computes, and only that decides: nobody
can tell that a tensor was not written to, but anybody can see whether it reads the same.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from .arena import Arena
from .shm import ALIGNMENT, Segment
from .values import Place, WireTensor

_MIB = 1 << 20
_FIRST_LEASE, _LARGEST_LEASE = 8 * _MIB, 256 * _MIB
#: A berth whose tensor was not in that many messages is given to another, though the tensor may live.
_IDLE = 8


class Source(Protocol):
    """A tensor, wherever it lies. `owner` is the object that others hold, the same one while it lives."""

    @property
    def owner(self) -> Any: ...

    @property
    def dtype(self) -> str: ...

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def nbytes(self) -> int: ...

    def write(self, target: memoryview) -> None:
        """Copy the tensor's bytes, in C order, to `target`."""

    def matches(self, target: memoryview) -> bool:
        """Whether `target` holds the tensor's bytes."""


def _nobody() -> None:
    """The owner of an empty berth."""


@dataclass(eq=False)
class _Berth:
    """A tensor's room in a segment, whose tensor lies there, and what was said of it in `message`.

    steady: it has never been found changed; stale: it has, and what lies here is not what it is.
    """

    segment: Segment
    offset: int
    nbytes: int
    owner: Callable[[], object] = field(default=_nobody)
    wire: WireTensor | None = None
    message: int = 0
    steady: bool = True
    stale: bool = False

    @property
    def view(self) -> memoryview:
        return self.segment.view(self.offset, self.nbytes)

    def holds(self, source: Source) -> bool:
        """Whether it is this very object that was copied here, in the form it has now."""
        same = self.wire is not None and self.owner() is source.owner
        return same and self.wire is not None and (self.wire.dtype, self.wire.shape) == _form(source)

    def answer(self, source: Source, message: int, *, same: bool) -> WireTensor:
        place = Place(self.segment.name, self.offset)
        self.message = message
        self.wire = WireTensor(source.dtype, source.shape, self.view, place, same)
        return self.wire


def _form(source: Source) -> tuple[str, tuple[int, ...]]:
    return source.dtype, source.shape


class Shelf:
    """The tensors of one run's messages. For each: `begin`, `place` them, send, and `settle` before use."""

    def __init__(self, arena: Arena) -> None:
        self._arena = arena
        self._leases: list[Segment] = []
        self._next = 0
        self._berths: list[_Berth] = []
        self._presumed: list[tuple[_Berth, Source]] = []
        self._message = 0

    @property
    def shortage(self) -> str:
        """Why there was no room."""
        return self._arena.shortage

    def begin(self) -> None:
        """The last message has had its reply, and the next one is made."""
        self._message += 1
        self._presumed.clear()

    def place(self, source: Source) -> WireTensor | None:
        """The tensor as it is sent, copied if need be; one object has one place. None: there is no room."""
        berth = next((berth for berth in self._berths if berth.holds(source)), None)
        if berth is None:
            return self._put(source)
        if berth.message == self._message and not berth.stale:
            return berth.wire
        if berth.stale or not (berth.steady or source.matches(berth.view)):
            return self._fill(berth, source)
        if berth.steady:
            self._presumed.append((berth, source))
        return berth.answer(source, self._message, same=True)

    def settle(self) -> bool:
        """Whether all that was presumed unchanged is. If not, place all again and send again."""
        for berth, source in self._presumed:
            berth.stale = not source.matches(berth.view)
            berth.steady = not berth.stale
        self._presumed.clear()
        return not any(berth.stale and berth.message == self._message for berth in self._berths)

    def close(self, *, reusable: bool) -> None:
        """Give the room back; not `reusable` when the engine may still read from it."""
        for segment in self._leases:
            (self._arena.release if reusable else self._arena.discard)(segment)
        self._leases.clear()
        self._berths.clear()
        self._presumed.clear()

    def _put(self, source: Source) -> WireTensor | None:
        berth = self._vacant(source.nbytes) or self._new(source.nbytes)
        if berth is None:
            return None
        berth.owner = weakref.ref(source.owner)
        berth.steady = True
        return self._fill(berth, source)

    def _fill(self, berth: _Berth, source: Source) -> WireTensor:
        source.write(berth.view)
        berth.stale = False
        return berth.answer(source, self._message, same=False)

    def _vacant(self, nbytes: int) -> _Berth | None:
        """A berth of that size whose tensor is gone, or has long not been sent."""
        fitting = [berth for berth in self._berths if berth.nbytes == nbytes]
        gone = (
            berth
            for berth in fitting
            if berth.message < self._message - (_IDLE if berth.owner() is not None else 0)
        )
        return next(gone, None)

    def _new(self, nbytes: int) -> _Berth | None:
        if not self._leases or self._next + nbytes > self._leases[-1].size:
            grown = min(2 * self._leases[-1].size, _LARGEST_LEASE) if self._leases else _FIRST_LEASE
            segment = self._arena.lease(max(nbytes, grown)) or self._arena.lease(nbytes)
            if segment is None:
                return None
            self._leases.append(segment)
            self._next = 0
        berth = _Berth(self._leases[-1], self._next, nbytes)
        self._next = -(-(self._next + nbytes) // ALIGNMENT) * ALIGNMENT
        self._berths.append(berth)
        return berth
