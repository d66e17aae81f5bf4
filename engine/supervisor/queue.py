"""A first-in first-out queue that is fair to sessions: each in turn gets one request through."""

from __future__ import annotations

from collections import OrderedDict, deque
from itertools import zip_longest

from .requests import Request


class FairQueue:
    """Waiting requests. `push` with `urgent` goes before every session's own."""

    def __init__(self) -> None:
        self._urgent: deque[Request] = deque()
        self._lines: OrderedDict[str, deque[Request]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._urgent) + sum(map(len, self._lines.values()))

    def push(self, request: Request, *, urgent: bool = False) -> None:
        line = self._urgent if urgent else self._lines.setdefault(request.session, deque())
        line.append(request)

    def pop(self) -> Request | None:
        """The next request to run; its session then waits behind all others."""
        if self._urgent:
            return self._urgent.popleft()
        if not self._lines:
            return None
        session, line = self._lines.popitem(last=False)
        request = line.popleft()
        if line:
            self._lines[session] = line
        return request

    def remove(self, request: Request) -> None:
        """Take `request` out, wherever it waits; it may already be gone."""
        if request in self._urgent:
            self._urgent.remove(request)
        line = self._lines.get(request.session)
        if line and request in line:
            line.remove(request)
            if not line:
                del self._lines[request.session]

    def order(self) -> list[Request]:
        """Every waiting request, in the order they will run if nothing more arrives."""
        rounds = zip_longest(*self._lines.values())
        return [*self._urgent, *(request for turn in rounds for request in turn if request is not None)]
