"""The engine's state as the control channel reports it."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from typing import Literal

from ...protocol.messages.control import RankStatus, ResidentModel, StatusReport
from ...protocol.version import PROTOCOL_VERSION
from ..config import EngineConfig
from .dispatch import Dispatcher
from .ranks import Member
from .sessions import Sessions


@dataclass(eq=False)
class StatusDesk:
    """Collects what everybody knows; asks nobody, so a busy rank does not delay it."""

    config: EngineConfig
    engine: str
    version: str
    sessions: Sessions
    dispatcher: Dispatcher
    started: float = field(default_factory=time.monotonic)

    def report(self) -> StatusReport:
        members = self.dispatcher.group.members
        held = members[0].done if members else None
        running = self.dispatcher.running
        return StatusReport(
            engine=self.engine,
            version=self.version,
            protocol=PROTOCOL_VERSION,
            pid=os.getpid(),
            life=self.config.life,
            uptime=time.monotonic() - self.started,
            sessions=len(self.sessions),
            queued=len(self.dispatcher.queue),
            running=running.type if running else "",
            ranks=self._ranks(),
            models=[ResidentModel(**model) for model in held.models] if held else [],
            blobs_bytes=held.blobs_bytes if held else 0,
            counters={**self.dispatcher.counters, "groups_started": float(self.dispatcher.group.spawned)},
        )

    def _ranks(self) -> list[RankStatus]:
        members = self.dispatcher.group.members
        if not members:
            return [RankStatus(rank=rank, pid=0, state="dead") for rank in range(self.config.ranks)]
        return [self._rank(member) for member in members]

    def _rank(self, member: Member) -> RankStatus:
        return RankStatus(
            rank=member.process.spec.rank,
            pid=member.process.pid,
            state=self._state(member),
            device=member.ready.device if member.ready else "",
            resident_bytes=member.done.resident_bytes if member.done else 0,
            peak_bytes=member.done.peak_bytes if member.done else 0,
        )

    def _state(self, member: Member) -> Literal["starting", "ready", "busy"]:
        if member.ready is None:
            return "starting"
        return "busy" if self.dispatcher.running else "ready"
