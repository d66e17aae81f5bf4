"""Unloads at the engine what no MODEL in ComfyUI refers to any more."""

from __future__ import annotations

import threading
import weakref
from collections import Counter
from queue import SimpleQueue
from typing import Any

from .remote import RemoteModel

Key = tuple[int, str]


class Janitor:
    """Counts the skeletons of each file at each engine; when the last one dies, the engine drops the file.

    Skeletons die in any thread and at any moment, so their finalizers only leave a note for a thread.
    """

    def __init__(self) -> None:
        self._holders: Counter[Key] = Counter()
        self._lock = threading.Lock()
        self._dead: SimpleQueue[RemoteModel] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def watch(self, model: Any, remote: RemoteModel) -> None:
        """Count `model`, a skeleton, as a holder of `remote`'s file until it is garbage."""
        with self._lock:
            self._holders[_key(remote)] += 1
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="outboard-janitor", daemon=True)
                self._thread.start()
        weakref.finalize(model, self._dead.put, remote).atexit = False

    def _work(self) -> None:
        while True:
            remote = self._dead.get()
            with self._lock:
                self._holders[_key(remote)] -= 1
                last = self._holders[_key(remote)] <= 0
            if last:
                remote.unload()


def _key(remote: RemoteModel) -> Key:
    return id(remote.session), remote.ref.digest


JANITOR = Janitor()
