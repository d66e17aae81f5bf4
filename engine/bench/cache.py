"""What the step cache gains and costs: each preset against the same run without a cache, taking turns.

Two subjects: the digits model, whose pictures a judge reads, and a network as deep as published ones, with
random weights that change smoothly with time. Pictures are compared as latents: peak signal to noise in dB,
over the range of the uncached latent. Seconds are those of this process on one thread of the CPU.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter, process_time
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from ..cache.controller import StepCache, install, remove
from ..cache.presets import PRESETS, preset
from ..cache.settings import Settings
from ..cache.tally import Tally
from ..demo.assets import LATENT_SHAPE
from ..demo.digits import decode, prompt, to_graph_space
from ..demo.draw import shipped_model
from ..demo.judge import read_all
from ..models.flux1 import Flux1
from ..models.loader import load
from ..models.model import Model
from ..sampling.noise import initial_noise
from ..sampling.schedules import discrete_flow_table, simple_sigmas
from .row import Row
from .smooth import smoothed
from .weights import published_shapes, random_weights

STEPS = (28, 50, 8)
ROUNDS = 3
DIGITS, PICTURES, CFG = "digits", 100, 4.0
#: Least speed-up on the deep network, at as many steps as presets are meant for.
SPEED: Mapping[str, float] = {"quality": 1.67, "balanced": 2.0, "fast": 2.69}
SPEED_STEPS = (28, 50)
PSNR_PRESET, PSNR = "quality", 30.0
#: Points of accuracy that a preset may lose.
ACCURACY = -1.0
OVERHEAD, MIXED = 1.02, 0.75
PAIRS = 40
DEEP = {
    "in_channels": 64,
    "out_channels": 64,
    "num_layers": 8,
    "num_single_layers": 16,
    "attention_head_dim": 128,
    "num_attention_heads": 2,
    "joint_attention_dim": 64,
    "pooled_projection_dim": 32,
    "guidance_embeds": False,
    "axes_dims_rope": (16, 56, 56),
}
SIDE, WORDS = 24, 16

Around = Callable[[int, float], AbstractContextManager[None]]


@dataclass(frozen=True, eq=False)
class Subject:
    """A model, the noise it starts from [B,16,H,W] and its conditionings: of each row, one after the other.

    `branches` are 1, or 2 when the first half of the rows guides the second; `clock` is what the network is
    told at sigma 1, `shift` that of the schedule.
    """

    name: str
    model: Model
    noise: Tensor
    conditioning: Mapping[str, Tensor]
    branches: int = 1
    clock: float = 1.0
    shift: float = 1.0

    def run(self, steps: int, around: Around = lambda _index, _sigma: nullcontext()) -> Tensor:
        """The latent after an Euler run of `steps` steps."""
        x = self.noise
        for index, (sigma, following) in enumerate(pairwise(self.sigmas(steps))):
            with around(index, sigma):
                whole = torch.cat([x] * self.branches)
                timestep = whole.new_full((len(whole),), sigma * self.clock)
                v = self.model.predict(whole, timestep, self.conditioning).float()
            x = x + (following - sigma) * (v if self.branches == 1 else _guided(*v.chunk(2)))
        return x

    def sigmas(self, steps: int) -> list[float]:
        """Of a `simple` schedule, from 1 to 0."""
        sigmas: list[float] = simple_sigmas(discrete_flow_table(self.shift, 1.0), steps).tolist()
        return sigmas

    @property
    def rows(self) -> list[tuple[int, int]]:
        return [(branch, row) for branch in range(self.branches) for row in range(len(self.noise))]


def rows(rounds: int = ROUNDS, steps: Sequence[int] = STEPS, pictures: int = PICTURES) -> Iterator[Row]:
    """Of each preset, model and number of steps: speed-up, blocks computed, PSNR; of the digits, accuracy."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        deep = deep_subject()
        yield from _costs(deep)
        for subject in (deep, digits_subject(pictures)):
            for count in steps:
                yield from _presets(subject, count, rounds if subject is deep else 1)
    finally:
        torch.set_num_threads(threads)


def digits_subject(pictures: int) -> Subject:
    """The demo's model, drawing all digits with guidance."""
    asked = [prompt(number % 10) for number in range(pictures)]
    table = {
        name: torch.cat([entry[name] for entry in [prompt(None)] * pictures + asked]) for name in asked[0]
    }
    return Subject(DIGITS, shipped_model(), initial_noise((pictures, *LATENT_SHAPE), 0), table, 2)


def deep_subject() -> Subject:
    """A FLUX.1 of 24 blocks, narrow, with random weights."""
    generator = torch.Generator().manual_seed(2)
    conditioning = {
        "context": torch.randn(1, WORDS, 64, generator=generator),
        "y": torch.randn(1, 32, generator=generator),
    }
    with TemporaryDirectory(prefix="cache-") as folder:
        path = Path(folder) / "deep.safetensors"
        save_file(dict(random_weights(published_shapes(Flux1(), DEEP), torch.float32)), path)
        model = load(path, dtype=torch.float32, device=torch.device("cpu"), config=DEEP)
    smoothed(model.module)
    return Subject("24 blocks", model, initial_noise((1, 16, SIDE, SIDE), 0), conditioning)


def _guided(negative: Tensor, positive: Tensor) -> Tensor:
    return negative + CFG * (positive - negative)


@dataclass(frozen=True, eq=False)
class Turn:
    """One run: its latent, its seconds, and what the cache says of it."""

    latent: Tensor
    seconds: float
    tally: Tally | None = None


def plain(subject: Subject, steps: int) -> Turn:
    began = _now(subject)
    latent = subject.run(steps)
    return Turn(latent, _now(subject) - began)


def cached(subject: Subject, steps: int, settings: Settings) -> Turn:
    """A run with the cache on the model; installing it is not timed, beginning and ending the run is."""
    cache = install(subject.model, settings)
    try:
        began = _now(subject)
        with cache.running("run", total=steps) as tally:
            latent = subject.run(steps, _around(cache, subject, steps))
        return Turn(latent, _now(subject) - began, tally)
    finally:
        remove(subject.model)


def _now(subject: Subject) -> float:
    """Seconds of this process; beside a GPU, which counts none there, seconds of the clock."""
    if subject.model.device.type != "cuda":
        return process_time()
    torch.cuda.synchronize(subject.model.device)
    return perf_counter()


def _around(cache: StepCache, subject: Subject, steps: int) -> Around:
    keys: Any = subject.rows
    return lambda index, sigma: cache.step(run="run", rows=keys, index=index, total=steps, sigma=sigma)


def _presets(subject: Subject, steps: int, rounds: int) -> Iterator[Row]:
    """All presets take turns with one uncached run a round."""
    chosen: dict[str, Settings] = {name: preset(name, subject.model.family, steps) for name in PRESETS}
    fulls: list[Turn] = []
    quicks: dict[str, list[Turn]] = {name: [] for name in chosen}
    for _ in range(rounds):
        fulls.append(plain(subject, steps))
        for name, settings in chosen.items():
            quicks[name].append(cached(subject, steps, settings))
    for name, turns in quicks.items():
        ratio = median(full.seconds / quick.seconds for full, quick in zip(fulls, turns, strict=True))
        deep = subject.name != DIGITS
        case = f"{name} {subject.name} {steps}"
        yield _row(case, "speedup", ratio, "x", SPEED[name] if deep and steps in SPEED_STEPS else None)
        yield from _report(case, fulls[-1].latent, turns[-1], PSNR if name == PSNR_PRESET else None)
        if not deep:
            yield from _read(case, fulls[-1].latent, turns[-1].latent)


def _report(case: str, full: Tensor, quick: Turn, required: float | None) -> Iterator[Row]:
    assert quick.tally is not None
    yield _row(case, "blocks", 100 * quick.tally.blocks_computed / quick.tally.blocks_total, "%", None)
    yield _row(case, "psnr", psnr(quick.latent, full), "dB", required)


def _read(case: str, full: Tensor, quick: Tensor) -> Iterator[Row]:
    yield _row(case, "accuracy", accuracy(quick), "%", None)
    yield _row(case, "accuracy, gained", accuracy(quick) - accuracy(full), "points", ACCURACY)


def _costs(subject: Subject) -> Iterator[Row]:
    """A forward that is compared and computed, and one of two rows of which one reuses, over uncached ones.

    The differences are small, so of each side's times the lower quartile counts: what disturbs only adds.
    """
    compared = Settings(Fn_compute_blocks=1, residual_diff_threshold=1e-9, max_warmup_steps=0)
    always = Settings(Fn_compute_blocks=1, residual_diff_threshold=1.0, max_warmup_steps=1)
    twice = {name: torch.cat([value, value]) for name, value in subject.conditioning.items()}
    pair = replace(subject, noise=torch.cat([subject.noise, subject.noise]), conditioning=twice)
    alone, both = [(0, 0)], [(0, 0), (0, 1)]
    ratio = _over_uncached(subject, subject, compared, alone)
    yield _at_most("nothing reused", "overhead", ratio, OVERHEAD)
    yield _at_most(
        "one row of two reused", "over both computed", _over_uncached(subject, pair, always, both), MIXED
    )


def _over_uncached(
    before: Subject, subject: Subject, settings: Settings, rows: Sequence[tuple[int, int]]
) -> float:
    """Seconds of a second step with `rows`, the first step having had the first one, over uncached ones."""
    bare, mine = [], []
    for _ in range(PAIRS):
        bare.append(_seconds(subject, 0.5))
        cache = install(subject.model, settings)
        with cache.step(run="run", rows=rows[:1], index=0, total=2):
            _seconds(before, 1.0)
        began = process_time()
        with cache.step(run="run", rows=rows, index=1, total=2):
            _seconds(subject, 0.5)
        mine.append(process_time() - began)
        remove(subject.model)
    return sorted(mine)[PAIRS // 4] / sorted(bare)[PAIRS // 4]


def _seconds(subject: Subject, sigma: float) -> float:
    began = process_time()
    subject.model.predict(subject.noise, torch.full((len(subject.noise),), sigma), subject.conditioning)
    return process_time() - began


def _at_most(case: str, metric: str, value: float, most: float) -> Row:
    return Row("cache", case, metric, value, "x", most, value <= most)


def psnr(latent: Tensor, reference: Tensor) -> float:
    """Peak signal to noise ratio in dB."""
    error = float((latent - reference).square().mean())
    peak = float(reference.max() - reference.min())
    return 10 * math.log10(peak**2 / error) if error else math.inf


def picture(latent: Tensor) -> Tensor:
    """The digits model's latents as pictures [B,32,32]."""
    return decode(to_graph_space(latent))


def accuracy(latent: Tensor) -> float:
    """Per cent of digits that the judge reads as what was asked for."""
    read = read_all(picture(latent))
    return 100 * sum(reading.is_digit(number % 10) for number, reading in enumerate(read)) / len(read)


def _row(case: str, metric: str, value: float, unit: str, least: float | None) -> Row:
    return Row("cache", case, metric, value, unit, least, least is None or value >= least)
