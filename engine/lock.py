"""A lock file that two processes cannot hold at once, and that no dead process can keep."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from types import TracebackType

from ..protocol.errors import EngineStartError

_POLL = 0.02

if sys.platform == "win32":
    import msvcrt

    def _try_lock(descriptor: int) -> None:
        msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)

else:
    import fcntl

    def _try_lock(descriptor: int) -> None:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


class FileLock:
    """`with FileLock(path, timeout):` waits up to `timeout` seconds, then raises EngineStartError.

    The file stays behind: removing it would let a third process lock another file of the same name.
    """

    def __init__(self, path: Path, timeout: float = 60.0) -> None:
        self._path = path
        self._timeout = timeout
        self._descriptor = -1

    def __enter__(self) -> FileLock:
        self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
        deadline = time.monotonic() + self._timeout
        while not self._locked():
            if time.monotonic() > deadline:
                os.close(self._descriptor)
                raise EngineStartError(
                    f"Another process has held {self._path} for {self._timeout:.0f} s.",
                    hint="It is starting an engine; end it if it hangs.",
                )
            time.sleep(_POLL)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._descriptor)

    def _locked(self) -> bool:
        try:
            _try_lock(self._descriptor)
        except OSError:
            return False
        return True
