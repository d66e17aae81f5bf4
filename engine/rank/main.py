"""Entry of a rank's process: reads its settings, says ready when it is, works, and outlives nobody."""

from __future__ import annotations

import os
import signal
import sys
import threading
from typing import NoReturn

from .tether import Tether, read_spec


def main() -> NoReturn:
    """Run one rank until the supervisor says exit or is gone."""
    # Ctrl-C reaches the whole process group; the supervisor decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.excepthook = _die
    spec = read_spec()
    tether = Tether(spec)
    # Torch takes seconds to import, and the tether must hold from the first.
    from .assembly import assemble

    line, worker = assemble(spec)
    tether.leave = line.leave
    worker.serve()
    line.close()
    sys.stderr.flush()
    # Taking torch apart object by object takes seconds, and frees nothing that the system would not.
    os._exit(0)


def _die(failed: threading.ExceptHookArgs) -> None:
    """A thread that fails takes the rank with it: the supervisor then answers for it within seconds."""
    sys.__excepthook__(failed.exc_type, failed.exc_value or failed.exc_type(), failed.exc_traceback)
    sys.stderr.flush()
    os._exit(70)
