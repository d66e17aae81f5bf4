"""What is remembered between steps: by run, branch and row, within a budget, dropped with the run."""

from __future__ import annotations

import threading
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field

from torch import Tensor

from .decision import Counters
from .forecast import Snapshot

Run = Hashable
#: A branch (one conditioning of a run) and the row of the batch.
Key = tuple[Hashable, int]
#: Shapes, dtype and version of the weights: what is remembered serves only where all are the same.
Signature = tuple[Hashable, ...]


@dataclass(frozen=True, eq=False)
class RowState:
    """The past of one row: what it added where, and how the first blocks changed it at the last such step."""

    signature: Signature
    history: tuple[Snapshot, ...]
    probe: Tensor | None = None
    counters: Counters = field(default_factory=Counters)

    @property
    def computed(self) -> float:
        """The position of the last computed step."""
        return self.history[-1].position

    @property
    def nbytes(self) -> int:
        probe = 0 if self.probe is None else self.probe.numel() * self.probe.element_size()
        return probe + sum(snapshot.nbytes for snapshot in self.history)


class Store:
    """The states of all runs of one model. `budget` in bytes, 0 for any number.

    A row that does not fit is not remembered, so its next step is computed: slower, never another picture.
    """

    def __init__(self, budget: int = 0) -> None:
        self.budget = budget
        self.nbytes = 0
        self._runs: dict[Run, dict[Key, RowState]] = {}
        self._lock = threading.Lock()

    def __contains__(self, run: Run) -> bool:
        return run in self._runs

    def get(self, run: Run, key: Key, signature: Signature) -> RowState | None:
        """The row's state, unless it was left by another shape, dtype or set of weights."""
        state = self._runs.get(run, {}).get(key)
        return state if state is not None and state.signature == signature else None

    def commit(self, run: Run, states: Mapping[Key, RowState]) -> int:
        """Remember `states`; returns the bytes of those that had no room."""
        refused = 0
        with self._lock:
            rows = self._runs.setdefault(run, {})
            for key, state in states.items():
                old = rows.pop(key, None)
                self.nbytes -= old.nbytes if old else 0
                if self.budget and self.nbytes + state.nbytes > self.budget:
                    refused += state.nbytes
                    continue
                rows[key] = state
                self.nbytes += state.nbytes
        return refused

    def bytes_of(self, run: Run) -> int:
        return sum(state.nbytes for state in self._runs.get(run, {}).values())

    def drop(self, run: Run) -> None:
        with self._lock:
            self.nbytes -= sum(state.nbytes for state in self._runs.pop(run, {}).values())
