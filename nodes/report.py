"""What each run did, kept for the nodes, the panel and the page."""

from __future__ import annotations

import json
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from server import PromptServer

from ..protocol.messages.common import Report
from . import lineage
from .compat import current_node

EVENT = "outboard.report"
SHORT_DTYPES = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}
KEPT = 200

_collected: ContextVar[list[Entry] | None] = ContextVar("outboard_reports", default=None)


@dataclass(frozen=True)
class Entry:
    """One run: the node that asked for it, a line for people, and every fact for the panel.

    lineage: the signature of that node in the graph that ran.
    """

    node: str
    line: str
    facts: dict[str, Any]
    lineage: str = ""
    time: float = field(default_factory=time.time)

    @property
    def text(self) -> str:
        return json.dumps(self.facts, indent=2)

    def public(self) -> dict[str, Any]:
        """What the page is told."""
        return {"node": self.node, "line": self.line, "facts": self.facts, "time": self.time}


class Reports:
    """The latest entry of each node; safe to use from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._latest: OrderedDict[str, Entry] = OrderedDict()

    def add(self, entry: Entry) -> None:
        with self._lock:
            self._latest[entry.node] = entry
            self._latest.move_to_end(entry.node)
            while len(self._latest) > KEPT:
                self._latest.popitem(last=False)

    def of(self, node: str) -> Entry | None:
        with self._lock:
            return self._latest.get(node)

    def latest(self, count: int = 20) -> list[dict[str, Any]]:
        """The newest entries as plain data, newest first."""
        with self._lock:
            entries = list(self._latest.values())[-count:]
        return [entry.public() for entry in reversed(entries)]


REPORTS = Reports()


def publish(report: Report) -> Entry:
    """Remember `report` under the executing node and show its line on that node in the page."""
    node = current_node()
    entry = Entry(node, line(report), report.model_dump(), lineage.signature(lineage.running_prompt(), node))
    REPORTS.add(entry)
    collected = _collected.get()
    if collected is not None:
        collected.append(entry)
    _send(entry)
    return entry


@contextmanager
def collecting() -> Iterator[list[Entry]]:
    """Yield a list that receives every entry published inside the block, by this thread."""
    entries: list[Entry] = []
    token = _collected.set(entries)
    try:
        yield entries
    finally:
        _collected.reset(token)


def line(report: Report) -> str:
    """`whole loop · 20 steps · 20 forwards · 1.92 s · euler · fp32 · cpu`."""
    path = report.path.replace("_", " ")
    parts = [
        f"{path} ({report.reason})" if report.reason else path,
        _count(report.steps, "step"),
        _reuse(report),
        _count(report.forwards, "forward"),
        f"{report.splits} split for memory" if report.splits else "",
        f"{report.seconds:.2f} s",
        report.sampler,
        SHORT_DTYPES.get(report.dtype, report.dtype),
        report.device,
        f"LoRA on {_count(report.adapted_weights, 'weight')}" if report.adapters else "",
        f"{_count(len(report.unmatched_keys), 'LoRA key')} unmatched" if report.unmatched_keys else "",
    ]
    return " · ".join(part for part in parts if part)


def _reuse(report: Report) -> str:
    """`12 of 28 steps reused`, where a step cache was asked for."""
    if report.cache is None:
        return ""
    if not report.cache.values:
        return "step cache off"
    return f"{report.steps_reused} of {report.cache.steps} steps reused"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _send(entry: Entry) -> None:
    server = PromptServer.instance
    server.send_sync(EVENT, entry.public(), server.client_id)
