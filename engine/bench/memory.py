"""How much host memory another process takes for its own while something happens (Linux)."""

from __future__ import annotations

import threading
from pathlib import Path

EVERY = 0.005
KINDS = ("RssAnon", "RssShmem")


class HostMemory:
    """Within, watches process `pid`; `growth` is the peak of its private and shared bytes above the start.

    Pages of mapped files are not counted: they are the page cache's, and go when anyone needs room.
    """

    def __init__(self, pid: int) -> None:
        self._status = Path(f"/proc/{pid}/status")
        self._stop = threading.Event()
        self._watcher = threading.Thread(target=self._watch)
        self._before = self._peak = 0

    @property
    def growth(self) -> int:
        return self._peak - self._before

    def __enter__(self) -> HostMemory:
        self._before = self._peak = self._held()
        self._watcher.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stop.set()
        self._watcher.join()
        self._peak = max(self._peak, self._held())

    def _watch(self) -> None:
        while not self._stop.wait(EVERY):
            self._peak = max(self._peak, self._held())

    def _held(self) -> int:
        fields = dict(line.split(":", 1) for line in self._status.read_text(encoding="ascii").splitlines())
        return sum(int(fields[kind].split()[0]) for kind in KINDS) * 1024
