"""A search for step cache settings: a coarse grid, then finer around what was best, and the front of it all.

What a setting gains and costs is measured by whoever asks; nothing here knows a model or a clock of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace

from .masks import FEWEST_STEPS
from .settings import SCM_PRESETS, UNLIMITED, Settings
from .yaml_form import dump

#: Times that the grid is made finer around the front.
FINER = 2
#: Fewest steps computed before a distance is trusted, and the distances tried first.
WARMUP, THRESHOLDS = 4, (0.05, 0.1, 0.2, 0.4)
NARROW, WIDE = 0.7, 1.4
#: A distance beside a dynamic mask: a guard against a trajectory that jumps.
GUARD = 0.5
#: Speeds that differ by less than this part are equal: they were measured once.
CHANCE = 0.05


@dataclass(frozen=True)
class Point:
    """What one setting gave: `speedup` in times, `psnr` in dB, the part of the `blocks` computed.

    `accuracy` in per cent where pictures can be read, None where not.
    """

    settings: Settings
    speedup: float
    psnr: float
    blocks: float
    accuracy: float | None = None

    def beats(self, other: Point) -> bool:
        """As good in speed, PSNR and accuracy, and better in one of them."""
        mine, theirs = self._goods(), other._goods()
        return mine != theirs and all(one >= two for one, two in zip(mine, theirs, strict=True))

    def _goods(self) -> tuple[float, ...]:
        return self.speedup, self.psnr, -1.0 if self.accuracy is None else self.accuracy


Measure = Callable[[Settings], Point]


def coarse(steps: int) -> list[Settings]:
    """The first settings to try for a run of `steps` steps: masks of both policies, and distances alone."""
    warm = Settings(Fn_compute_blocks=1, max_warmup_steps=min(WARMUP, max(1, steps // 4)))
    tried = [replace(warm, residual_diff_threshold=threshold) for threshold in THRESHOLDS]
    if steps < FEWEST_STEPS:  # named masks are off there
        return tried
    for name in SCM_PRESETS[1:]:
        masked = Settings(Fn_compute_blocks=1, scm_preset=name, taylorseer_order=1)
        static = replace(masked, steps_computation_policy="static", residual_diff_threshold=0.0)
        skipping = replace(static, skip_fn_on_static=True)
        tried += [skipping, replace(skipping, taylorseer_order=0)]
        tried.append(replace(masked, residual_diff_threshold=GUARD))
    return tried


def finer(around: Settings) -> list[Settings]:
    """The neighbours of a setting: one value of it changed at a time."""
    near = [replace(around, taylorseer_order=order) for order in (0, 1, 2)]
    if around.static:
        return [*near, replace(around, skip_fn_on_static=not around.skip_fn_on_static)]
    threshold, limit = around.residual_diff_threshold, around.max_continuous_cached_steps
    near += [replace(around, residual_diff_threshold=round(threshold * by, 4)) for by in (NARROW, WIDE)]
    limits = (1, 3) if limit == UNLIMITED else (UNLIMITED, 2)
    near += [replace(around, max_continuous_cached_steps=most) for most in limits]
    if not around.masked:
        warmup = around.max_warmup_steps
        near += [replace(around, max_warmup_steps=steps) for steps in (max(1, warmup // 2), 2 * warmup)]
    return near


def front(points: Sequence[Point]) -> list[Point]:
    """Those that no other beats, the fastest first. One that skipped nothing is not worth a cache."""
    useful = [point for point in points if point.blocks < 1]
    best = [point for point in useful if not any(other.beats(point) for other in useful)]
    return sorted(best, key=lambda point: (-point.speedup, -point.psnr))


def sweep(measure: Measure, steps: int, in_time: Callable[[], bool] = lambda: True) -> Iterator[Point]:
    """Each point as soon as it is measured, while `in_time()` holds; no setting is measured twice."""
    found: list[Point] = []
    seen: set[Settings] = set()
    wanted = coarse(steps)
    for _ in range(1 + FINER):
        for settings in wanted:
            if settings in seen:
                continue
            if not in_time():
                return
            seen.add(settings)
            found.append(measure(settings))
            yield found[-1]
        wanted = [near for point in front(found) for near in finer(point.settings)]


def choose(points: Sequence[Point], psnr: float, accuracy: float | None = None) -> Point | None:
    """The fastest of a front with at least `psnr` dB and `accuracy`; without one, nearest the original."""
    enough = [
        point
        for point in points
        if point.psnr >= psnr and (accuracy is None or point.accuracy is None or point.accuracy >= accuracy)
    ]
    least = (1 - CHANCE) * max((point.speedup for point in enough), default=0.0)
    quick = [point for point in enough if point.speedup >= least]
    return max(quick or points, key=lambda point: point.psnr, default=None)


def brief(settings: Settings) -> str:
    """What of a setting is not the default, in one line."""
    plain = Settings()
    given = ((field.name, getattr(settings, field.name)) for field in fields(settings))
    return " ".join(f"{name}={value}" for name, value in given if value != getattr(plain, name))


def to_yaml(points: Sequence[Point], chosen: Point, about: Sequence[str]) -> str:
    """A file that `yaml_form.read_file` reads as the settings of `chosen`, with all `points` as comments."""
    comments = [*about, "The front, the fastest first:", *map(describe, points), "Chosen:", describe(chosen)]
    return "".join(f"# {line}\n" for line in comments) + dump(chosen.settings)


def describe(point: Point) -> str:
    """One line for people."""
    read = "" if point.accuracy is None else f"  {point.accuracy:5.1f} % read"
    return (
        f"{point.speedup:5.2f}x  {point.psnr:6.1f} dB  {point.blocks:4.0%} of blocks{read}  "
        f"{brief(point.settings)}"
    )
