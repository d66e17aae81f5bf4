"""One per-step run as its calls see it: what the engine holds already is named, and the rest is sent."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any

from ..protocol.values import Tree
from . import interrupt
from .conditioning import wire
from .known import Known
from .residuals import Residuals
from .session import Session

#: Arguments that a node may make anew at every step.
FRESH = frozenset({"control"})


class StepRun:
    """Turns the arguments of one DiT call after another into what crosses the wire."""

    def __init__(self, session: Session) -> None:
        self.id = uuid.uuid4().hex
        self._session = session
        self._open()

    def _open(self) -> None:
        """Begin with an engine that holds nothing of this run."""
        self._known = Known(self._session.intern)
        self._residuals = Residuals(self._session.shelf())
        self._generation = self._session.generation

    def repeated(self, arguments: Mapping[str, Any]) -> dict[str, Tree]:
        """The arguments that go with every step, their large tensors stored at the engine."""
        with interrupt.translated():
            self._session.client()
        if self._session.generation != self._generation:
            self._open()
        self._residuals.begin()
        given = {name: value for name, value in arguments.items() if name not in FRESH}
        with interrupt.translated():
            return wire(given, self._known.wire)

    def fresh(self, arguments: Mapping[str, Any]) -> dict[str, Tree]:
        """The others; wired again, they carry what had changed unseen."""
        given = {name: value for name, value in arguments.items() if name in FRESH}
        return wire(given, self._residuals.wire)

    def look(self) -> None:
        """While the engine computes: raise on the user's interrupt, and look for what has changed unseen."""
        interrupt.check()
        self._residuals.look()

    def settled(self) -> bool:
        """Whether the engine computed with what the tensors hold; if not, the call must be made again."""
        return self._residuals.settled()

    def close(self, *, reusable: bool) -> None:
        """The run is over; not `reusable` when one of its requests failed."""
        self._residuals.close(reusable=reusable)
