"""`outboard bench`: run one benchmark, a line for each measured number, and fail when a target is missed."""

from __future__ import annotations

import argparse
import importlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from math import isnan
from pathlib import Path

from ..bench.row import Row
from ..cli import write

BENCHES: Mapping[str, str] = {
    "hop": "a tensor to another process and back, by frames and by shared memory",
    "overhead": "a denoise loop through the engine against the same loop called bare",
    "control": "ControlNet residuals into the engine against one copy of as many bytes",
    "step": "one step of each model family against ComfyUI's own module",
    "load": "a large checkpoint into the engine against reading the same file",
    "lora": "a LoRA's strength changed against copying the weights it rewrites",
    "cache": "each preset of the step cache against the same run without one",
}
#: Paths that a benchmark takes besides, and what they are for.
PATHS: Mapping[str, Mapping[str, str]] = {
    "step": {
        "comfyui": "folder of the ComfyUI to compare with (default: $COMFYUI_PATH, else ~/ComfyUI)",
        "comfyui_python": "the Python that runs it (default: the one in its .venv, else this one)",
    },
    "load": {"folder": "where to write the checkpoint (default: the folder for temporary files)"},
    "lora": {"folder": "where to write the checkpoint (default: the folder for temporary files)"},
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    benches = parser.add_subparsers(dest="name", required=True, metavar="name")
    for name, what in BENCHES.items():
        bench = benches.add_parser(name, help=what, description=what)
        bench.add_argument("--json", action="store_true", help="one JSON object a line")
        for path, meaning in PATHS.get(name, {}).items():
            bench.add_argument(f"--{path.replace('_', '-')}", type=Path, metavar="PATH", help=meaning)


def run(options: argparse.Namespace) -> int:
    paths = {path: getattr(options, path) for path in PATHS.get(options.name, {})}
    missed = 0
    for row in rows(options.name, **paths):
        write(_json(row) if options.json else _line(row))
        missed += not row.ok
    return 1 if missed else 0


def rows(name: str, **paths: Path | None) -> Iterator[Row]:
    """Run benchmark `name`; each row comes as soon as it is measured."""
    measured: Iterator[Row] = importlib.import_module(f"..bench.{name}", __package__).rows(**paths)
    return measured


def _json(row: Row) -> str:
    value = None if isnan(row.value) else row.value
    return json.dumps(asdict(row) | {"value": value})


def _line(row: Row) -> str:
    target = "" if row.target is None else f"target {row.target:g} {row.unit}  {'ok' if row.ok else 'MISSED'}"
    value = "not measured" if isnan(row.value) else f"{row.value:.4g}"
    return f"{row.bench:<10} {row.case:<20} {row.metric:<20} {value:>12} {row.unit:<6} {target}".rstrip()
