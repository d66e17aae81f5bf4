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
        self._known = Known(session.intern)
        self._residuals = Residuals(session.shelf())

    def repeated(self, arguments: Mapping[str, Any]) -> dict[str, Tree]:
        """The arguments that go with every step, their large tensors stored at the engine."""
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
