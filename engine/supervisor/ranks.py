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

log = logging.getLogger(__name__)


@dataclass(eq=False)
class Member:
    """One rank as the supervisor sees it."""

    process: RankProcess
    ready: Ready | None = None
    done: Done | None = None

    @property
    def identity(self) -> bytes:
        return self.process.spec.identity.encode()


@dataclass(eq=False)
class Group:
    """All ranks of one engine. They live and die together; `state` is that of the slowest.

    `failure` says why the last group died; `leftovers` and `registration` are the files the
    ranks remove when the supervisor is killed.
    """

    config: EngineConfig
    engine: str
    endpoint: str
    socket: zmq.Socket[bytes]
    leftovers: Sequence[Path]
    registration: Path
    members: list[Member] = field(default_factory=list)
    failure: OutboardError | None = None
    spawned: int = 0
    _pause: float = 0.0
    _not_before: float = 0.0
    _started: float = 0.0

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
        self.members = [Member(RankProcess(self._spec(rank))) for rank in range(self.config.ranks)]
        log.info("started ranks with pids %s", [member.process.pid for member in self.members])

    def member(self, identity: bytes) -> Member | None:
        """The rank behind a message; None for a stranger or a rank of a group that is gone."""
        return next((member for member in self.members if member.identity == identity), None)

    def came_up(self, member: Member, ready: Ready) -> None:
        member.ready = ready
        if self.state == "ready":
            self._pause = 0.0
            log.info("all ranks ready after %.1f s", time.monotonic() - self._started)

    def send(self, record: Task | CancelTask | EndSession | Exit, frames: Sequence[Frame] = ()) -> None:
        """Give every rank the same command. A rank that just died is noticed by `check`, not here."""
        for member in self.members:
            try:
                self.socket.send_multipart([member.identity, *pack(record, frames)], copy=False)
            except zmq.ZMQError as error:
                log.warning("rank %d cannot be reached: %s", member.process.spec.rank, error)

    def check(self) -> OutboardError | None:
        """Notice a death or a start that takes too long, and take the group down. None while all is well."""
        for member in self.members:
            if member.process.exit_code is not None:
                return self._fall(self._death(member))
        late = time.monotonic() - self._started > START_TIMEOUT
        if self.state == "starting" and late:
            return self._fall(
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

    def _fall(self, error: OutboardError) -> OutboardError:
        came_up = self.state == "ready"
        for member in self.members:
            member.process.kill()
            member.process.release()
        self.members = []
        self.failure = error
        self._pause = 0.0 if came_up else min(MAX_PAUSE, 2 * self._pause + 1)
        self._not_before = time.monotonic() + self._pause
        log.error("%s", error)
        return error

    def _death(self, member: Member) -> OutboardError:
        rank, code, words = member.process.spec.rank, member.process.exit_code, member.process.last_words()
        message = f"Rank {rank} of the engine died (exit code {code})"
        details = {"rank": str(rank), "exit_code": str(code), "stderr": words}
        if self.state == "ready":
            hint = "The engine starts its ranks again; queue the prompt once more. Its log has the rest."
            return EngineLostError(f"{message}. Its last words:\n{words}", hint=hint, details=details)
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
            leftovers=[str(path) for path in self.leftovers],
            registration=str(self.registration),
        )
