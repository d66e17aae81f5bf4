"""`outboard status`: what the engines of this user are doing."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path

from ...protocol.client import Client
from ...protocol.errors import InternalError
from ...protocol.messages.control import Status, StatusReport
from ..cli import write
from ..launch import running
from ..paths import runtime_dir
from ..registry import Registration, read_registration

CONNECT_TIMEOUT = 60.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="one JSON object per engine and line")


def run(options: argparse.Namespace) -> int:
    """Show every engine; 1 when there is none."""
    reports = [_ask(registration) for registration in _registrations(runtime_dir())]
    for report in reports:
        write(report.model_dump_json() if options.json else _lines(report))
    if not reports:
        write(json.dumps(None) if options.json else "No engine is running.")
    return 0 if reports else 1


def _registrations(folder: Path) -> Iterator[Registration]:
    for path in sorted(folder.glob("*.json")):
        if read_registration(path) is not None:
            found = running(folder, path.stem)
            if found is not None:
                yield found


def _ask(registration: Registration) -> StatusReport:
    client = Client.connect(registration.address, client="outboard status", timeout=CONNECT_TIMEOUT)
    try:
        report = client.control(Status())
    finally:
        client.close()
    if not isinstance(report, StatusReport):
        raise InternalError(f"The engine answered status with {report.type}.")
    return report


def _lines(report: StatusReport) -> str:
    process = f"pid {report.pid}  up {report.uptime:.0f} s  version {report.version}"
    head = f"engine {report.engine}  {report.life}  {process}"
    work = f"  running {report.running or '-'}, {report.queued} queued, {report.sessions} sessions"
    ranks = [
        f"  rank {rank.rank}  {rank.state}  {rank.device}  pid {rank.pid}  holds {_size(rank.resident_bytes)}"
        f"  peak {_size(rank.peak_bytes)}"
        for rank in report.ranks
    ]
    models = [f"  model {m.name}  {m.family}  {m.dtype}  {_size(m.nbytes)}" for m in report.models]
    counters = "  " + "  ".join(f"{name} {value:g}" for name, value in sorted(report.counters.items()))
    return "\n".join([head, work, *ranks, *models, f"  blobs {_size(report.blobs_bytes)}", counters])


def _size(nbytes: int) -> str:
    return f"{nbytes / 2**30:.2f} GiB" if nbytes >= 2**30 else f"{nbytes / 2**20:.1f} MiB"
