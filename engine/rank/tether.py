"""A rank's tether: standard input, which ends when the supervisor does, however that happens."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

from ...protocol.shm import engine_prefix, sweep
from ..link import RankSpec, spec_from
from ..registry import remove_registration

#: Seconds a rank whose supervisor is gone may take to end the step under way.
GRACE = 5.0
#: Read without Python's buffer, whose lock a thread that waits for the end would hold at exit.
_STDIN = 0


def read_spec() -> RankSpec:
    """This rank's settings: the first line of standard input."""
    with open(_STDIN, "rb", buffering=0, closefd=False) as raw:
        return spec_from(json.loads(raw.readline()))


class Tether:
    """Waits in a thread for the end of standard input, then ends the process.

    In order through `leave` when there is something to leave and it is quick, at once when not.
    """

    def __init__(self, spec: RankSpec) -> None:
        self.leave: Callable[[], None] | None = None
        self._spec = spec
        threading.Thread(target=self._wait, name="tether", daemon=True).start()

    def _wait(self) -> None:
        while os.read(_STDIN, 4096):
            continue
        _clean_up(self._spec)
        if self.leave is not None:
            self.leave()
            time.sleep(GRACE)
        os._exit(1)


def _clean_up(spec: RankSpec) -> None:
    """What the supervisor would remove; it may have been killed before it could."""
    remove_registration(Path(spec.registration), spec.engine)
    for leftover in spec.leftovers:
        Path(leftover).unlink(missing_ok=True)
    sweep(engine_prefix(spec.engine))
