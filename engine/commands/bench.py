"""`outboard bench`: run one benchmark, a line for each measured number, and fail when a target is missed."""

from __future__ import annotations

import argparse
import importlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict

from ..bench.row import Row
from ..cli import write

BENCHES: Mapping[str, str] = {
    "hop": "a tensor to another process and back, by frames and by shared memory",
    "overhead": "a denoise loop through the engine against the same loop called bare",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "name", choices=BENCHES, help="; ".join(f"{name}: {what}" for name, what in BENCHES.items())
    )
    parser.add_argument("--json", action="store_true", help="one JSON object a line")


def run(options: argparse.Namespace) -> int:
    missed = 0
    for row in rows(options.name):
        write(json.dumps(asdict(row)) if options.json else _line(row))
        missed += not row.ok
    return 1 if missed else 0


def rows(name: str) -> Iterator[Row]:
    """Run benchmark `name`; each row comes as soon as it is measured."""
    measured: Iterator[Row] = importlib.import_module(f"..bench.{name}", __package__).rows()
    return measured


def _line(row: Row) -> str:
    target = "" if row.target is None else f"target {row.target:g} {row.unit}  {'ok' if row.ok else 'MISSED'}"
    return (
        f"{row.bench:<10} {row.case:<20} {row.metric:<20} {row.value:>12.4g} {row.unit:<6} {target}".rstrip()
    )
