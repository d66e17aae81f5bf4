"""One rank's process: started, tethered by its standard input, its last words kept."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterable
from dataclasses import asdict

from ..environment import child_environment
from ..link import RankSpec
from ..paths import START_SCRIPT

LAST_LINES = 20

log = logging.getLogger(__name__)


class RankProcess:
    """A running `start.py rank`. It ends when its standard input does, however this process ends."""

    def __init__(self, spec: RankSpec) -> None:
        self.spec = spec
        self._last: deque[str] = deque(maxlen=LAST_LINES)
        self._process = subprocess.Popen(
            [sys.executable, str(START_SCRIPT), "rank"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env=child_environment(threads=spec.threads),
            creationflags=getattr(subprocess, "CREATE_NO_WINDOW", 0),
        )
        self._reader = threading.Thread(
            target=self._read_stderr, name=f"rank-{spec.rank}-stderr", daemon=True
        )
        self._reader.start()
        self._write_spec()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs; negative is the signal that killed it."""
        return self._process.poll()

    def last_words(self) -> str:
        """The last lines it wrote to standard error."""
        self._reader.join(timeout=0.2)
        return "\n".join(self._last)

    def release(self) -> None:
        """Cut the tether: the rank notices and exits."""
        if self._process.stdin is not None:
            try:
                self._process.stdin.close()
            except BrokenPipeError:
                log.debug("rank %d had already closed its end", self.spec.rank)

    def wait(self, timeout: float) -> None:
        """Give it `timeout` seconds to exit, then kill it."""
        try:
            self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def _write_spec(self) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(asdict(self.spec)).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            log.warning("rank %d died before it read its settings", self.spec.rank)

    def _read_stderr(self) -> None:
        assert self._process.stderr is not None
        lines: Iterable[bytes] = self._process.stderr
        for raw in lines:
            line = raw.decode("utf-8", "replace").rstrip()
            self._last.append(line)
            log.info("rank %d: %s", self.spec.rank, line)
