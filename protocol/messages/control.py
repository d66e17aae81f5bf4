"""The control channel, both directions: it never queues behind work."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from .base import Identifier, Message, Record, Text
from .common import ModelRef


class Cancel(Message):
    """Take back a request of this session, wherever it is: queued, loading or sampling."""

    type: ClassVar[str] = "cancel"
    request: Identifier


class Status(Message):
    """Ask for the engine's state."""

    type: ClassVar[str] = "status"


class Unload(Message):
    """Drop a resident model, or all of them. Waits for the request under way, not for the queue."""

    type: ClassVar[str] = "unload"
    model: ModelRef | None = None


class Ping(Message):
    """Are you there?"""

    type: ClassVar[str] = "ping"


class Shutdown(Message):
    """End the engine: requests under way end in an error, then every process exits."""

    type: ClassVar[str] = "shutdown"


class CancelReply(Message):
    """`found` is false when the request had already ended; its terminal reply stands."""

    type: ClassVar[str] = "cancel_reply"
    terminal: ClassVar[bool] = True
    found: bool


class RankStatus(Record):
    """One rank: `state` and what it holds. Sizes in bytes."""

    rank: int
    pid: int
    state: Literal["starting", "ready", "busy", "dead"]
    device: Text = ""
    resident_bytes: int = 0
    peak_bytes: int = 0


class ResidentModel(Record):
    """One model in the ranks' memory."""

    name: Text
    family: Text
    dtype: Text
    nbytes: int


class StatusReport(Message):
    """The engine's state; counters run since it started."""

    type: ClassVar[str] = "status_report"
    terminal: ClassVar[bool] = True
    engine: Identifier
    version: Text
    protocol: str
    pid: int
    life: Literal["owned", "shared"]
    uptime: float
    sessions: int
    queued: int
    running: Text = ""
    ranks: list[RankStatus] = Field(default_factory=list)
    models: list[ResidentModel] = Field(default_factory=list)
    blobs_bytes: int = 0
    counters: dict[str, float] = Field(default_factory=dict)


class Unloaded(Message):
    """`bytes_freed` is what the ranks held before."""

    type: ClassVar[str] = "unloaded"
    terminal: ClassVar[bool] = True
    bytes_freed: int


class Pong(Message):
    """Yes."""

    type: ClassVar[str] = "pong"
    terminal: ClassVar[bool] = True


class ShuttingDown(Message):
    """The engine will be gone within ten seconds."""

    type: ClassVar[str] = "shutting_down"
    terminal: ClassVar[bool] = True


CONTROL_REQUESTS: tuple[type[Message], ...] = (Cancel, Status, Unload, Ping, Shutdown)
CONTROL_REPLIES: tuple[type[Message], ...] = (CancelReply, StatusReport, Unloaded, Pong, ShuttingDown)
