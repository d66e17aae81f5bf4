"""`outboard demo`: the shipped model, drawn by the real engine and read by a judge; nothing is downloaded."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from contextlib import closing, contextmanager
from importlib.util import find_spec
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from ...protocol.client import Client
from ...protocol.errors import EngineStartError, InvalidRequestError
from ...protocol.release import release
from ..cli import write
from ..config import Environment
from ..launch import LaunchSpec, adopt_or_start, find_python
from ..paths import SHIPPED_ROOTS, START_SCRIPT

if TYPE_CHECKING:
    from ..demo.judge import Reading
    from ..demo.painter import Drawing

DIGITS = range(10)
GRID_SEEDS = 3
GRID_RIGHT = 29
"""Of the grid's thirty pictures, so many must be read as what was asked for."""

NEEDS = ("torch", "safetensors", "PIL")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("digit", type=int, nargs="?", choices=DIGITS, metavar="DIGIT", help="0 to 9")
    parser.add_argument("--grid", action="store_true", help=f"every digit with {GRID_SEEDS} seeds")
    parser.add_argument("--out", type=Path, metavar="FILE.png", help="where the picture goes")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--cfg", type=float, default=4.0)
    parser.add_argument("--seed", type=int, default=0, help="the first one, with --grid")
    parser.add_argument("--json", action="store_true", help="one JSON object a picture")


def run(options: argparse.Namespace) -> int:
    """0 when the judge reads what was asked for: the one digit, or all but one of the grid's thirty."""
    _check(options)
    from ..demo import album, judge, painter

    wanted = [(digit, options.seed + turn) for digit in _digits(options) for turn in range(_seeds(options))]
    pictures, right = [], 0
    with _client() as client:
        for digit, seed in wanted:
            begin = perf_counter()
            drawing = painter.paint(client, digit, seed, steps=options.steps, cfg=options.cfg)
            seconds = perf_counter() - begin
            reading = judge.read(drawing.picture)
            _tell(options, _record(digit, seed, reading, drawing, seconds, options))
            pictures.append(drawing.picture)
            right += reading.is_digit(digit)
    if options.out:
        album.save(pictures, options.out, columns=_seeds(options))
    if options.grid and not options.json:
        write(f"{right} of {len(wanted)} read as asked")
    return 0 if right >= (GRID_RIGHT if options.grid else 1) else 1


def _check(options: argparse.Namespace) -> None:
    if (options.digit is None) != options.grid:
        raise InvalidRequestError(
            "Give one digit, or --grid.", hint="For example: outboard demo 7 --out seven.png"
        )
    if options.steps < 1 or options.seed < 0:
        raise InvalidRequestError("--steps starts at 1 and --seed at 0.", hint="Leave them out for 20 and 0.")
    lacking = [name for name in NEEDS if find_spec(name) is None]
    if lacking:
        raise EngineStartError(
            f"This Python has no {', '.join(lacking)}, which the demo needs to look at the picture.",
            hint=f"Run it with the engine's own: {find_python()} {START_SCRIPT} demo ...",
        )


@contextmanager
def _client() -> Iterator[Client]:
    spec = LaunchSpec(python=find_python(), roots=SHIPPED_ROOTS, device=Environment().device, owned=True)
    engine = adopt_or_start(spec)
    try:
        with closing(Client.connect(engine.address, client="outboard demo", version=release())) as client:
            yield client
    finally:
        engine.stop()


def _digits(options: argparse.Namespace) -> list[int]:
    return list(DIGITS) if options.grid else [options.digit]


def _seeds(options: argparse.Namespace) -> int:
    return GRID_SEEDS if options.grid else 1


def _record(
    digit: int, seed: int, reading: Reading, drawing: Drawing, seconds: float, options: argparse.Namespace
) -> dict[str, Any]:
    report = drawing.report
    return {
        "asked": digit,
        "read_as": reading.digit,
        "confidence": round(reading.confidence, 4),
        "seconds": round(seconds, 3),
        "seconds_loading": round(report.seconds_loading, 3),
        "path": report.path,
        "steps": report.steps,
        "seed": seed,
        "cfg": options.cfg,
        "sampler": report.sampler,
        "model": report.model,
        "family": report.family,
        "dtype": report.dtype,
        "device": report.device,
        "out": str(options.out) if options.out else None,
    }


def _tell(options: argparse.Namespace, record: dict[str, Any]) -> None:
    if options.json:
        write(json.dumps(record))
        return
    line = (
        "asked for {asked}, reads as {read_as} ({confidence:.0%} sure): seed {seed}, "
        "{steps} steps of {sampler}, {seconds:.2f} s ({seconds_loading:.2f} s of them loading) "
        "on {device} in {dtype}, {path}"
    )
    write(line.format(**record))
