"""Run as a program: load one file and write as JSON by how much each kind of memory grew at its peak.

Anonymous memory (the heap) and file-backed pages are sampled from /proc/self/status while the load runs;
total resident memory is the kernel's own high-water mark, reset just before the load. All in bytes.
"""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path

import torch

from outboard.engine.models.loader import inspect, load

KINDS = ("RssAnon", "RssFile", "VmHWM", "VmRSS")


def resident() -> dict[str, int]:
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    fields = dict(line.split(":", 1) for line in lines)
    return {kind: int(fields[kind].split()[0]) * 1024 for kind in KINDS}


def sample(peaks: dict[str, int], stop: threading.Event) -> None:
    while not stop.wait(0.005):
        for kind, value in resident().items():
            peaks[kind] = max(peaks[kind], value)


def growth_of_load(path: Path, dtype: torch.dtype) -> dict[str, int]:
    inspect(path)  # the first use of diffusers imports much that is no part of a load
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    before = resident()
    peaks, stop = dict(before), threading.Event()
    watcher = threading.Thread(target=sample, args=(peaks, stop))
    watcher.start()
    model = load(path, dtype=dtype, device=torch.device("cpu"))
    stop.set()
    watcher.join()
    peaks["VmHWM"] = resident()["VmHWM"]
    grown = {kind: peaks[kind] - before[kind] for kind in ("RssAnon", "RssFile")}
    return grown | {"total": peaks["VmHWM"] - before["VmRSS"], "model": model.nbytes}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(growth_of_load(Path(sys.argv[1]), getattr(torch, sys.argv[2]))))
