"""`outboard tune`: measure step cache settings on one model, and keep those that nothing else beats."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from importlib.util import find_spec
from math import isfinite
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from ...protocol.errors import EngineStartError, InvalidRequestError
from ..cli import write
from ..config import Environment
from ..launch import find_python
from ..paths import START_SCRIPT

if TYPE_CHECKING:
    from ..bench.cache import Subject
    from ..cache.tuning import Point

DEMO = "demo"
STEPS, SECONDS, PSNR, SIDE = 28, 600.0, 30.0, 64
#: Steps of the shortest run that a band without a lower end is tuned at.
SHORTEST = 4
PICTURES = 20
NEEDS = ("torch", "safetensors", "yaml")
INTERRUPTED = 130


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", required=True, metavar="FILE|demo", help="a model file, or the demo's")
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--steps", type=int, default=STEPS, help=f"steps of a run ({STEPS})")
    length.add_argument(
        "--family-bands", action="store_true", help="once for each range of steps that presets tell apart"
    )
    parser.add_argument("--out", type=Path, metavar="FILE.yaml", help="where the chosen settings go")
    parser.add_argument("--seconds", type=float, default=SECONDS, help=f"begin nothing after ({SECONDS:g})")
    parser.add_argument("--psnr", type=float, default=PSNR, help=f"least dB of what is chosen ({PSNR:g})")
    parser.add_argument("--size", type=int, default=SIDE, help=f"of the latent's sides ({SIDE})")
    parser.add_argument("--shift", type=float, default=1.0, help="of the schedule (1)")
    parser.add_argument("--conditioning", type=Path, metavar="FILE", help="safetensors with context, y, ...")
    parser.add_argument("--device", default=Environment().device)
    parser.add_argument("--dtype", default=Environment().dtype, choices=_DTYPES)
    parser.add_argument("--json", action="store_true", help="one JSON object a point")


_DTYPES = ("auto", "float32", "bfloat16", "float16")


def run(options: argparse.Namespace) -> int:
    """0 with a front, 1 when no setting spared anything, 130 after Ctrl-C; found is written all the same."""
    _check(options)
    subject, text = _subject(options)
    bands = _bands(subject.model.family) if options.family_bands else [options.steps]
    status = 0
    for steps in bands:
        points, interrupted = _points(subject, steps, options.seconds / len(bands))
        status = max(status, 0 if _finish(options, subject, text, steps, points) else 1)
        if interrupted:
            return INTERRUPTED
    return status


def _check(options: argparse.Namespace) -> None:
    lacking = [name for name in NEEDS if find_spec(name) is None]
    if lacking:
        raise EngineStartError(
            f"This Python has no {', '.join(lacking)}, which tuning needs.",
            hint=f"Run it with the engine's own: {find_python()} {START_SCRIPT} tune ...",
        )
    if options.steps < 2 or options.size < 1 or not options.seconds > 0 or not options.shift > 0:
        raise InvalidRequestError(
            "--steps starts at 2 and --size at 1; --seconds and --shift are above 0.", hint="Correct it."
        )
    if options.out and not options.out.parent.is_dir():
        raise InvalidRequestError(
            f"{options.out}: its folder is not there.", hint="Make it, or name another."
        )
    if options.model == DEMO and (options.conditioning or options.shift != 1.0 or options.size != SIDE):
        raise InvalidRequestError(
            "The demo's model has its own --conditioning, --size and --shift.", hint="Leave them out."
        )


def _subject(options: argparse.Namespace) -> tuple[Subject, str]:
    """What is measured, and in words what it is asked for."""
    from ..bench import cache, stranger

    if options.model == DEMO:
        return cache.digits_subject(PICTURES), f"digits ({PICTURES} pictures, guidance {cache.CFG:g})"
    from ..models.header import read_header
    from ..models.loader import load
    from ..rank.device import choose_device
    from ..rank.dtype import compute_dtype

    given = stranger.conditioning_of(options.conditioning) if options.conditioning else None
    path, device = Path(options.model), choose_device(options.device, 0)
    model = load(path, dtype=compute_dtype(options.dtype, read_header(path), device), device=device)
    text = f"text of {options.conditioning}" if given else "random text: no picture that anybody asked for"
    return stranger.stranger(model, options.size, options.shift, given), text


def _bands(family: str) -> list[int]:
    from ..cache.presets import ANY, TABLE

    bands = TABLE.get(family, ANY).values()
    return sorted({max(SHORTEST, band.fewest) for row in bands for band in row})


def _points(subject: Subject, steps: int, seconds: float) -> tuple[list[Point], bool]:
    """What was measured within `seconds`, and whether Ctrl-C ended it."""
    points: list[Point] = []
    try:
        for point in _measured(subject, steps, seconds):
            points.append(point)  # noqa: PERF402 - what was found must outlive an interruption
    except KeyboardInterrupt:
        return points, True
    return points, False


def _measured(subject: Subject, steps: int, seconds: float) -> Iterator[Point]:
    """Each setting takes turns with an uncached run of its own; all are compared with one more."""
    from ..bench.cache import plain
    from ..cache.tuning import sweep

    end = perf_counter() + seconds
    full = plain(subject, steps).latent  # the first run warms up too
    yield from sweep(_measure(subject, steps, full), steps, lambda: perf_counter() < end)


def _measure(subject: Subject, steps: int, full: Any) -> Callable[[Any], Point]:
    from ..bench.cache import DIGITS, accuracy, cached, picture, plain, psnr
    from ..cache.tuning import Point

    drawn = subject.name == DIGITS

    def measure(settings: Any) -> Point:
        uncached, quick = plain(subject, steps).seconds, cached(subject, steps, settings)
        assert quick.tally is not None
        return Point(
            settings,
            uncached / quick.seconds,
            psnr(picture(quick.latent), picture(full)) if drawn else psnr(quick.latent, full),
            quick.tally.blocks_computed / quick.tally.blocks_total,
            accuracy(quick.latent) if drawn else None,
        )

    return measure


def _finish(
    options: argparse.Namespace, subject: Subject, text: str, steps: int, points: Sequence[Point]
) -> bool:
    """Show the front and write the file; False when there is none."""
    from ..bench.cache import DIGITS
    from ..cache.tuning import choose, describe, front, to_yaml

    best = front(points)
    compared = "picture" if subject.name == DIGITS else "latent"
    about = (
        f"{options.model}: {steps} steps of euler, {text}; {len(points)} settings measured.",
        f"Speed-up and PSNR are against this engine's own uncached {compared}.",
    )
    if options.json:
        for point in best:
            write(json.dumps(_record(options, steps, text, point)))
    else:
        for line in (*about, *map(describe, best)):
            write(line)
    chosen = choose(best, options.psnr, max((point.accuracy or 0.0 for point in best), default=None))
    if chosen is None:
        _say(options, f"{steps} steps: no setting that was measured spared a block; nothing is written.")
        return False
    if options.out:
        path = _path(options, steps)
        _save(path, to_yaml(best, chosen, about))
        _say(options, f"{path}: {describe(chosen)}")
    return True


def _say(options: argparse.Namespace, line: str) -> None:
    """One line for people; with --json, where each line is a point, none."""
    if not options.json:
        write(line)


def _record(options: argparse.Namespace, steps: int, text: str, point: Point) -> dict[str, Any]:
    record = {"model": options.model, "steps": steps, "conditioning": text} | asdict(point)
    return record | {"psnr": point.psnr if isfinite(point.psnr) else None}


def _path(options: argparse.Namespace, steps: int) -> Path:
    """A file for each band when there are several: an engine reads one."""
    out: Path = options.out
    return out.with_stem(f"{out.stem}-{steps}") if options.family_bands else out


def _save(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InvalidRequestError(
            f"{path}: cannot be written: {error.strerror}.", hint="Name another."
        ) from error
