"""Faults for the ranks of an engine that a test starts with this folder on PYTHONPATH.

OUTBOARD_TEST_FAULT names a file. While it says `init`, rank 1 cannot join its group; when it says `step`, the
next forward of rank 1 removes it and fails, between two collectives.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

FAULT = Path(os.environ.get("OUTBOARD_TEST_FAULT", "/nowhere"))
RANK = 1


def is_due(kind: str) -> bool:
    return FAULT.is_file() and FAULT.read_text() == kind


def wait_for(name: str, attribute: str) -> Any:
    """A module of the process once it has been imported as far as `attribute`."""
    while not hasattr(sys.modules.get(name), attribute):
        time.sleep(0.002)
    return sys.modules[name]


def break_joining() -> None:
    distributed = wait_for("torch.distributed", "init_process_group")
    joined = distributed.init_process_group

    def join(*args: Any, **kwargs: Any) -> None:
        if kwargs["rank"] == RANK and is_due("init"):
            raise RuntimeError("a fault of the test, while joining")
        joined(*args, **kwargs)

    distributed.init_process_group = join


def break_a_forward() -> None:
    run = wait_for("outboard.engine.rank.run", "prepare_loop")
    evaluated = run.evaluate

    def evaluate(*args: Any) -> Any:
        if sys.modules["torch.distributed"].get_rank() == RANK and is_due("step"):
            FAULT.unlink()
            raise RuntimeError("a fault of the test, between two collectives")
        return evaluated(*args)

    run.evaluate = evaluate


if sys.argv[-1:] == ["rank"] or "rank" in sys.orig_argv:
    for work in (break_joining, break_a_forward):
        threading.Thread(target=work, daemon=True).start()
