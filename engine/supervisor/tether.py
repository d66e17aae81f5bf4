"""What ends an engine from outside: a signal, its owner's death, or nobody needing it."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from types import FrameType

from ..config import Life

log = logging.getLogger(__name__)


class Tether:
    """`cut` says why the engine must end, "" while it need not. To be made in the main thread."""

    def __init__(self, life: Life) -> None:
        self.cut = ""
        self._parent = os.getppid()
        self._life = life
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._on_signal)
        if life == "owned":
            threading.Thread(target=self._watch_stdin, name="tether", daemon=True).start()

    def check(self) -> str:
        """Look again. A process that inherited the pipe's other end may hide the owner's death from stdin."""
        if self._life == "owned" and sys.platform != "win32" and os.getppid() != self._parent:
            self.cut = self.cut or "its owner is gone"
        return self.cut

    def _watch_stdin(self) -> None:
        # Past Python's buffer, whose lock this thread would hold at exit.
        while os.read(0, 4096):
            log.debug("the owner wrote to the tether")
        self.cut = self.cut or "its owner has let go of it"

    def _on_signal(self, number: int, _: FrameType | None) -> None:
        self.cut = self.cut or f"signal {signal.Signals(number).name}"
