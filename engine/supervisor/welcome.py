"""The door: clients that said hello wait here until the ranks can say what they can do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from ...protocol.errors import OutboardError
from ...protocol.failure import to_message
from ...protocol.limits import DEFAULT
from ...protocol.messages import Message
from ...protocol.messages.client import Hello
from ...protocol.messages.engine import Limits, Welcome
from ...protocol.shm import host_identity
from ...protocol.version import CAPABILITIES, PROTOCOL_VERSION
from ..config import EngineConfig
from ..link import Ready
from .sessions import Sessions

Answer = Callable[[str, Message], None]
"""`answer(session, message)` sends to the client that said hello."""


@dataclass(eq=False)
class Door:
    """Opens sessions once `ready` is known; until then hellos wait, and a failed start refuses them all."""

    config: EngineConfig
    engine: str
    version: str
    sessions: Sessions
    revive: Callable[[], bool]
    refusal: Callable[[], OutboardError]
    ready: Ready | None = None
    waiting: list[tuple[Hello, Answer]] = field(default_factory=list)

    def knock(self, hello: Hello, answer: Answer) -> None:
        """Let a client in, now or as soon as the ranks are up."""
        if self.ready is not None:
            self._welcome(self.ready, hello, answer)
        elif self.revive():
            self.waiting.append((hello, answer))
        else:
            answer("", to_message(self.refusal()))

    def open(self, ready: Ready) -> None:
        """The ranks are up: welcome everybody who waits."""
        self.ready = ready
        waiting, self.waiting = self.waiting, []
        for hello, answer in waiting:
            self._welcome(ready, hello, answer)

    def refuse(self, error: OutboardError) -> None:
        """The ranks did not come up, or the engine ends: answer everybody who waits."""
        waiting, self.waiting = self.waiting, []
        for _, answer in waiting:
            answer("", to_message(error))

    def _welcome(self, ready: Ready, hello: Hello, answer: Answer) -> None:
        session = self.sessions.open(hello)
        answer(
            session.id,
            Welcome(
                protocol=PROTOCOL_VERSION,
                version=self.version,
                engine=self.engine,
                session=session.id,
                host=host_identity(),
                device=ready.device,
                world_size=self.config.ranks,
                samplers=ready.samplers,
                families=ready.families,
                capabilities=list(CAPABILITIES),
                limits=Limits(
                    header=DEFAULT.header,
                    tensor=DEFAULT.tensor,
                    message=DEFAULT.message,
                    blobs=self.config.blob_budget,
                ),
            ),
        )
