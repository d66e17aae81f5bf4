"""The group of ranks: spawned together, watched, and taken down together when one of them dies."""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal

import zmq

from ...protocol.errors import EngineLostError, EngineStartError, OutboardError
from ...protocol.transport import Frame
from ..config import EngineConfig
from ..link import CancelTask, Done, EndSession, Exit, RankSpec, Ready, Task, pack
from .process import RankProcess

START_TIMEOUT = 300.0
EXIT_TIMEOUT = 4.0
MAX_PAUSE = 60.0
SILENCE = 6.0
"""Seconds after which a rank of several that gives no sign of life is taken for stopped."""
STALL = 1.0
"""Seconds between two checks that say that this process itself stood still, and could hear nobody."""

RESTARTED = "The engine starts its ranks again; queue the prompt once more. Its log has the rest."

log = logging.getLogger(__name__)


@dataclass(eq=False)
class Member:
    """One rank as the supervisor sees it."""

    process: RankProcess
    ready: Ready | None = None
    done: Done | None = None
    heard: float = field(default_factory=time.monotonic)

    @property
    def rank(self) -> int:
        return self.process.spec.rank

    @property
    def identity(self) -> bytes:
        return self.process.spec.identity.encode()


@dataclass(eq=False)
class Group:
    """All ranks of one engine. They live and die together; `state` is that of the slowest.

    `failure` says why the last group died; `meeting` is the file at which the ranks find each other;
    `leftovers` and `registration` are the files the ranks remove when the supervisor is killed.
    """

    config: EngineConfig
    engine: str
    endpoint: str
    socket: zmq.Socket[bytes]
    leftovers: Sequence[Path]
    registration: Path
    meeting: Path
    members: list[Member] = field(default_factory=list)
    failure: OutboardError | None = None
    spawned: int = 0
    _pause: float = 0.0
    _not_before: float = 0.0
    _started: float = 0.0
    _checked: float = field(default_factory=time.monotonic)

    @property
    def state(self) -> Literal["dead", "starting", "ready"]:
        if not self.members:
            return "dead"
        return "ready" if all(member.ready for member in self.members) else "starting"

    @property
    def ready(self) -> Ready | None:
        """What rank 0 said when it came up."""
        return self.members[0].ready if self.members else None

    def may_spawn(self) -> bool:
        """Whether enough time has passed since a start that failed."""
        return time.monotonic() >= self._not_before

    def spawn(self) -> None:
        """Start every rank; each says `Ready` when it is."""
        self._started = time.monotonic()
        self.spawned += 1
        # A group never meets at the file of another, not even of its predecessor.
        self.meeting.unlink(missing_ok=True)
        self.members = [Member(RankProcess(self._spec(rank))) for rank in range(self.config.ranks)]
        log.info("started ranks with pids %s", [member.process.pid for member in self.members])

    def member(self, identity: bytes) -> Member | None:
        """The rank behind a message; None for a stranger or a rank of a group that is gone."""
        return next((member for member in self.members if member.identity == identity), None)

    def came_up(self, member: Member, ready: Ready) -> None:
        member.ready = ready
        if self.state == "ready":
            for other in self.members:
                other.heard = time.monotonic()
            self._pause = 0.0
            log.info("all ranks ready after %.1f s", time.monotonic() - self._started)

    def send(self, record: Task | CancelTask | EndSession | Exit, frames: Sequence[Frame] = ()) -> None:
        """Give every rank the same command. A rank that just died is noticed by `check`, not here."""
        for member in self.members:
            try:
                self.socket.send_multipart([member.identity, *pack(record, frames)], copy=False)
            except zmq.ZMQError as error:
                log.warning("rank %d cannot be reached: %s", member.rank, error)

    def check(self) -> OutboardError | None:
        """Notice a death, a silence or a start that takes too long, and take the group down.

        None while all is well.
        """
        for member in self.members:
            if member.process.exit_code is not None:
                return self.fall(self._death(member))
        silent = self._silent()
        if silent is not None:
            return self.fall(
                EngineLostError(
                    f"Rank {silent.rank} of the engine (pid {silent.process.pid}) has said nothing for "
                    f"{SILENCE:.0f} s: it was stopped, or hangs.",
                    hint=RESTARTED,
                    details={"rank": str(silent.rank)},
                )
            )
        late = time.monotonic() - self._started > START_TIMEOUT
        if self.state == "starting" and late:
            return self.fall(
                EngineStartError(f"The engine's ranks were not ready after {START_TIMEOUT:.0f} s.")
            )
        return None

    def stop(self) -> None:
        """End every rank in order; those that are not up yet, or do not obey, are killed."""
        if self.state == "ready":
            self.send(Exit())
        for member in self.members:
            member.process.release()
        deadline = time.monotonic() + (EXIT_TIMEOUT if self.state == "ready" else 0.0)
        for member in self.members:
            member.process.wait(max(0.0, deadline - time.monotonic()))
        self.members = []
        self.meeting.unlink(missing_ok=True)

    def fall(self, error: OutboardError) -> OutboardError:
        """End every rank at once, because of `error`."""
        came_up = self.state == "ready"
        for member in self.members:
            member.process.kill()
            member.process.release()
        self.members = []
        self.meeting.unlink(missing_ok=True)
        self.failure = error
        self._pause = 0.0 if came_up else min(MAX_PAUSE, 2 * self._pause + 1)
        self._not_before = time.monotonic() + self._pause
        log.error("%s", error)
        return error

    def _silent(self) -> Member | None:
        """A rank of several that has given no sign of life for too long."""
        now, before = time.monotonic(), self._checked
        self._checked = now
        if now - before > STALL:
            for member in self.members:
                member.heard += now - before
        if len(self.members) < 2 or self.state != "ready":
            return None
        return next((member for member in self.members if now - member.heard > SILENCE), None)

    def _death(self, member: Member) -> OutboardError:
        rank, code, words = member.rank, member.process.exit_code, member.process.last_words()
        message = f"Rank {rank} of the engine died (exit code {code})"
        details = {"rank": str(rank), "exit_code": str(code), "stderr": words}
        if self.state == "ready":
            return EngineLostError(f"{message}. Its last words:\n{words}", hint=RESTARTED, details=details)
        hint = "`outboard doctor` checks the engine's Python; `outboard setup` makes it a fresh one."
        return EngineStartError(
            f"{message} while starting. Its last words:\n{words}", hint=hint, details=details
        )

    def _spec(self, rank: int) -> RankSpec:
        config = self.config
        return RankSpec(
            rank=rank,
            world_size=config.ranks,
            engine=self.engine,
            endpoint=self.endpoint,
            identity=secrets.token_hex(16),
            device=config.device,
            dtype=config.dtype,
            threads=config.threads,
            memory_budget=config.memory_budget,
            blob_budget=config.blob_budget,
            adapter_budget=config.adapter_budget,
            cache=asdict(config.cache) if config.cache else {},
            layout=asdict(config.layout) if config.layout else {},
            meeting=str(self.meeting),
            leftovers=[str(path) for path in (*self.leftovers, self.meeting)],
            registration=str(self.registration),
        )
