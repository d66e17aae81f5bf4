"""Ranks that failed by themselves during one task that all compute together."""

from __future__ import annotations

import time
from typing import Any

from ...protocol.errors import EngineLostError, OutboardError
from ...protocol.failure import from_message
from ...protocol.messages.engine import Error

GRACE = 1.5
"""Seconds that the others have to fail too; after that they are waiting for the first, and would for good."""


class Failures:
    """By rank, why each failed."""

    def __init__(self) -> None:
        self._by_rank: dict[int, Error] = {}
        self._first = 0.0

    def __bool__(self) -> bool:
        return bool(self._by_rank)

    @property
    def overdue(self) -> bool:
        """Whether one failed so long ago that those that did not must be waiting for it."""
        return bool(self._by_rank) and time.monotonic() - self._first > GRACE

    def add(self, rank: int, failure: dict[str, Any]) -> None:
        """Take what rank said; fields of protocol Error."""
        if not self._by_rank:
            self._first = time.monotonic()
        self._by_rank[rank] = Error(**failure)

    def alike(self, ranks: int) -> bool:
        """Whether all `ranks` failed, with the same words: at the same place of the same program."""
        words = {(error.code, error.message) for error in self._by_rank.values()}
        return len(self._by_rank) == ranks and len(words) == 1

    def error(self) -> OutboardError:
        """Why the task failed: in one rank's words, and not those of a rank that merely missed another."""
        order = sorted(self._by_rank, key=lambda rank: (self._missed(rank), rank))
        rank, others = order[0], order[1:]
        error = from_message(self._by_rank[rank])
        if any(self._by_rank[other].message != error.message for other in others) or not others:
            error.message = f"Rank {rank}: {error.message}"
            error.details |= {"rank": str(rank)}
        return error

    def _missed(self, rank: int) -> bool:
        return self._by_rank[rank].code == EngineLostError.code
