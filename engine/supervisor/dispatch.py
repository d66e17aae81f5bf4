"""The dispatcher: takes requests to the ranks one at a time, and replies back, whatever dies meanwhile."""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Sequence

from ...protocol.errors import CancelledError, EngineStartError, OutboardError, ProtocolError
from ...protocol.messages.engine import Progress
from ...protocol.transport import Frame
from ..link import Beat, CancelTask, Done, EndSession, Ready, Reply, Task, unpack
from .failures import Failures
from .queue import FairQueue
from .ranks import Group, Member
from .requests import OpenRequests, Request

TELL_EVERY = 0.2

log = logging.getLogger(__name__)


class Dispatcher:
    """Owns the queue, the open requests and the group. One task runs at a time; `bypass` ones never wait."""

    def __init__(self, group: Group) -> None:
        self.group = group
        self.open = OpenRequests()
        self.queue = FairQueue()
        self.running: Request | None = None
        self.counters: defaultdict[str, float] = defaultdict(float)
        self._unfinished: set[bytes] = set()
        self._waiting_for_group: list[Request] = []
        self._failures = Failures()
        self._started = 0.0

    def submit(self, request: Request, *, urgent: bool = False, bypass: bool = False) -> None:
        """Open `request` and run it in its turn; `bypass` hands it to the ranks at once, `urgent` next."""
        if not self.open.add(request):
            return
        self.counters[f"{request.type}_requests"] += 1
        if not self.revive():
            self._fail(request, self.start_error())
        elif bypass:
            self._waiting_for_group.append(request)
        else:
            self.queue.push(request, urgent=urgent)
        self.advance()

    def revive(self) -> bool:
        """Start the group when it is dead and may be; False when requests cannot be taken now."""
        if self.group.state == "dead" and self.group.may_spawn():
            self.group.spawn()
        return self.group.state != "dead"

    def cancel(self, key: str) -> bool:
        """Take a request back wherever it is; False when it has already ended."""
        request = self.open.get(key)
        if request is None:
            return False
        if request.state == "running":
            self.group.send(CancelTask(key))
            return True
        self.fail(request, CancelledError("The request was cancelled before it began."))
        return True

    def end_session(self, session: str) -> None:
        """Drop what a session has queued, cancel what it runs, and let the ranks forget it."""
        for request in self.open.of_session(session):
            self.cancel(request.key)
        if self.group.state == "ready":
            self.group.send(EndSession(session))

    def advance(self) -> None:
        """Give the ranks what they can take now, and tell the others where they stand."""
        if self.group.state == "ready":
            waiting, self._waiting_for_group = self._waiting_for_group, []
            for request in waiting:
                self._hand_over(request)
            if self.running is None:
                self._run_next()
        self._tell_places()

    def hear(self, identity: bytes, frames: Sequence[Frame]) -> None:
        """Take one message of a rank."""
        member = self.group.member(identity)
        if member is None:
            log.info("a message of a rank that is gone was dropped")
            return
        member.heard = time.monotonic()
        record, rest = unpack(frames)
        if isinstance(record, Beat):
            return
        if isinstance(record, Ready):
            self.group.came_up(member, record)
        elif isinstance(record, Reply):
            self._pass_on(record, rest)
        elif isinstance(record, Done):
            self._done(member, record)
        else:
            raise ProtocolError(f"A rank sent {record.kind!r}, which only the supervisor may.")
        self.advance()

    def check(self) -> OutboardError | None:
        """Notice a dead group: everything open is answered now, and ranks that had come up start again."""
        error = self.group.check() or self._stuck()
        if error is not None:
            self._lost(error)
        self._tell_places()
        return error

    def _lost(self, error: OutboardError) -> None:
        self.counters["groups_lost"] += 1
        self.fail_all(error)
        if not isinstance(error, EngineStartError):
            self.revive()

    def fail_all(self, error: OutboardError) -> None:
        """Answer every open request with `error`."""
        for request in self.open:
            self.fail(request, error)
        self.running = None
        self._unfinished = set()
        self._failures = Failures()

    def fail(self, request: Request, error: OutboardError) -> None:
        """Answer one open request with `error`, wherever it waits."""
        self._withdraw(request)
        self._fail(request, error)

    def start_error(self) -> OutboardError:
        """Why requests cannot be taken now."""
        return self.group.failure or EngineStartError("The engine's ranks are not running.")

    def _fail(self, request: Request, error: OutboardError) -> None:
        self.counters["cancelled" if isinstance(error, CancelledError) else "failed"] += 1
        self.open.fail(request, error)

    def _withdraw(self, request: Request) -> None:
        self.queue.remove(request)
        if request in self._waiting_for_group:
            self._waiting_for_group.remove(request)

    def _run_next(self) -> None:
        request = self.queue.pop()
        if request is None:
            return
        self.running = request
        self._unfinished = {member.identity for member in self.group.members}
        self._started = time.monotonic()
        self._hand_over(request)

    def _hand_over(self, request: Request) -> None:
        request.state = "running"
        queued = time.monotonic() - request.received
        task = Task(
            request.key, request.session, request.id, request.type, request.path, queued, list(request.files)
        )
        self.group.send(task, request.frames)
        # A rank has its own copy now; tensors of a long run are not held twice.
        request.frames = ()

    def _pass_on(self, reply: Reply, frames: Sequence[Frame]) -> None:
        request = self.open.get(reply.key)
        if reply.terminal:
            self.open.finish(reply.key, frames)
            self.counters["answered"] += 1
        elif request is not None:
            request.send(frames)

    def _done(self, member: Member, done: Done) -> None:
        member.done = done
        if self.running is None or done.key != self.running.key:
            return
        self._unfinished.discard(member.identity)
        if done.failure:
            self._failures.add(member.rank, done.failure)
        if not self._unfinished:
            self.counters["busy_seconds"] += time.monotonic() - self._started
            running, self.running = self.running, None
            self._settle(running)

    def _settle(self, request: Request) -> None:
        """All ranks are through. If all failed alike, they agree on where they are, and may go on."""
        if not self._failures:
            return
        alike = self._failures.alike(len(self.group.members))
        error = self._failures.error()
        self._failures = Failures()
        if alike:
            self.fail(request, error)
        else:
            self._lose(error)

    def _stuck(self) -> OutboardError | None:
        """Notice that a rank failed and others wait for it, which nothing else would end."""
        if self.running is None or not self._failures.overdue:
            return None
        return self.group.fall(self._failures.error())

    def _lose(self, error: OutboardError) -> None:
        self._lost(self.group.fall(error))

    def _tell_places(self) -> None:
        now = time.monotonic()
        for place, request in enumerate(self.queue.order()):
            ahead = place + (self.running is not None)
            text = f"{ahead} ahead" if self.group.state == "ready" else "the engine is starting"
            if request.told != text and now - request.told_at >= TELL_EVERY:
                request.told, request.told_at = text, now
                request.tell(Progress(phase="queued", done=0, total=ahead, text=text))
