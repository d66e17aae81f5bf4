"""What supervisor and ranks say to each other: one small msgpack record, then a client's frames unchanged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, ClassVar, TypeAlias

import msgpack

from ..protocol.errors import ProtocolError
from ..protocol.transport import Frame


@dataclass(frozen=True)
class RankSpec:
    """The first line of a rank's standard input. `identity` is its secret name on the supervisor's socket."""

    rank: int
    world_size: int
    engine: str
    endpoint: str
    identity: str
    device: str
    dtype: str
    threads: int
    memory_budget: int
    blob_budget: int
    adapter_budget: int
    registration: str
    cache: dict[str, Any] = field(default_factory=dict)
    """The configured step cache, fields of CacheConfig; empty: none."""
    layout: dict[str, int] = field(default_factory=dict)
    """The configured fields of Layout; empty: the best for each request."""
    meeting: str = ""
    """The file at which the ranks of a group find each other."""
    leftovers: list[str] = field(default_factory=list)
    """Files that the ranks remove, beside the registration, when the supervisor was killed."""


@dataclass(frozen=True)
class Task:
    """Supervisor -> rank: one client message follows.

    `path` is the model file of a Load, Run or Predict; `files` the LoRA files of a PutAdapters, in its order.
    """

    kind: ClassVar[str] = "task"
    key: str
    session: str
    id: str
    type: str
    path: str = ""
    queued: float = 0.0
    files: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class CancelTask:
    """Supervisor -> rank: the client took task `key` back."""

    kind: ClassVar[str] = "cancel"
    key: str


@dataclass(frozen=True)
class EndSession:
    """Supervisor -> rank: drop what is remembered for `session`."""

    kind: ClassVar[str] = "end_session"
    session: str


@dataclass(frozen=True)
class Exit:
    """Supervisor -> rank: cancel everything and exit."""

    kind: ClassVar[str] = "exit"


@dataclass(frozen=True)
class Ready:
    """Rank -> supervisor: torch is up and the device answers."""

    kind: ClassVar[str] = "ready"
    pid: int
    device: str
    samplers: list[str]
    families: list[str]


@dataclass(frozen=True)
class Beat:
    """Rank -> supervisor, every second: the process is neither stopped nor stuck."""

    kind: ClassVar[str] = "beat"


@dataclass(frozen=True)
class Reply:
    """Rank -> supervisor: one message for the client of task `key` follows."""

    kind: ClassVar[str] = "reply"
    key: str
    terminal: bool


@dataclass(frozen=True)
class Done:
    """Rank -> supervisor: task `key` is over here, and this is what the rank holds now (sizes in bytes)."""

    kind: ClassVar[str] = "done"
    key: str
    resident_bytes: int
    peak_bytes: int
    blobs_bytes: int
    models: list[dict[str, Any]]
    """Fields of protocol ResidentModel."""
    failure: dict[str, Any] = field(default_factory=dict)
    """Fields of protocol Error when the rank failed by itself while others computed with it."""


Record: TypeAlias = Task | CancelTask | EndSession | Exit | Ready | Beat | Reply | Done
_RECORDS: dict[str, type[Any]] = {
    record.kind: record for record in (Task, CancelTask, EndSession, Exit, Ready, Beat, Reply, Done)
}


def pack(record: Record, frames: Sequence[Frame] = ()) -> list[Frame]:
    """One multipart message: the record, then `frames` as they are."""
    return [msgpack.packb([record.kind, asdict(record)]), *frames]


def unpack(frames: Sequence[Frame]) -> tuple[Record, Sequence[Frame]]:
    """Split a multipart message. Raises ProtocolError when its first frame is no known record."""
    try:
        kind, values = msgpack.unpackb(memoryview(frames[0]))
        record: Record = _RECORDS[kind](**values)
    except (ValueError, KeyError, TypeError, IndexError, msgpack.UnpackException) as error:
        raise ProtocolError(
            f"A frame between supervisor and rank is no record of theirs: {error}."
        ) from error
    return record, frames[1:]


def spec_from(values: dict[str, Any]) -> RankSpec:
    """Rebuild a RankSpec from its JSON; an unknown or missing field is a TypeError of ours."""
    known = {entry.name for entry in fields(RankSpec)}
    assert set(values) <= known, f"unknown rank settings {sorted(set(values) - known)}"
    return RankSpec(**values)
