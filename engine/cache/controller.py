"""The step cache of one model: installed from outside, asked for each step, emptied with each run."""

from __future__ import annotations

import threading
from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from ...protocol.errors import InternalError, InvalidRequestError
from ..models.model import Model
from .passing import Passing, Place
from .plan import Plan, check_blocks
from .position import position_of
from .seam import Call, Site, attach, detach, sites_of
from .settings import Settings
from .similarity import Reduce
from .state import Key, Run, Store
from .tally import Tally

#: Where a network keeps its cache.
CACHE = "_outboard_step_cache"


@dataclass(eq=False)
class RunRecord:
    """One sampler invocation: its settings and schedule, and what was done so far."""

    settings: Settings
    sigmas: tuple[float, ...] = ()
    plan: Plan | None = None
    tally: Tally = field(default_factory=Tally)
    levels: dict[int, float] = field(default_factory=dict)

    def place(self, index: int, sigma: float | None) -> tuple[int, float | None]:
        """The step and the position of a call; no position between steps when there is no schedule."""
        if self.sigmas and sigma is not None:
            position = position_of(sigma, self.sigmas)
            assert self.plan is not None
            return index if position is None else min(int(position), self.plan.total - 1), position
        first = self.levels.setdefault(index, sigma if sigma is not None else 0.0)
        return index, float(index) if sigma is None or sigma == first else None


class StepCache:
    """Use `with cache.step(...)` around each forward; without it the model computes as if there were none.

    `settings` serve runs that bring none. `budget` (bytes, 0 for any number) is for all runs together.
    `reduce` adds up a tensor over the ranks that share one forward's tokens.
    """

    def __init__(
        self, sites: Sequence[Site], settings: Settings, *, budget: int = 0, reduce: Reduce | None = None
    ) -> None:
        self.settings = settings
        self.reduce = reduce
        self.sites = tuple(sites)
        self._store = Store(budget)
        self._runs: dict[Run, RunRecord] = {}
        # Each thread has the forward it is in: two on one model do not see each other's.
        self._local = threading.local()

    @property
    def nbytes(self) -> int:
        """Bytes remembered for all runs."""
        return self._store.nbytes

    def begin(
        self, run: Run, *, total: int, sigmas: Sequence[float] = (), settings: Settings | None = None
    ) -> Tally:
        """Announce a run of `total` steps; `sigmas` tell where calls between its steps are.

        Optional, but it is here that settings which do not fit are refused, with InvalidRequestError, before
        anything is sampled.
        """
        record = RunRecord(settings or self.settings, tuple(map(float, sigmas)))
        record.plan = Plan.of(record.settings, total, len(self.sites))
        for note in record.plan.notes:
            record.tally.note(note)
        self._store.drop(run)
        self._runs[run] = record
        return record.tally

    def drop(self, run: Run) -> None:
        """Forget a run, however it ended."""
        self._runs.pop(run, None)
        self._store.drop(run)

    def tally(self, run: Run) -> Tally:
        """What was done in a run that is not dropped yet."""
        return self._runs[run].tally

    @contextmanager
    def running(
        self, run: Run, *, total: int, sigmas: Sequence[float] = (), settings: Settings | None = None
    ) -> Iterator[Tally]:
        """`begin` a run, and `drop` it at the end."""
        try:
            yield self.begin(run, total=total, sigmas=sigmas, settings=settings)
        finally:
            self.drop(run)

    @contextmanager
    def step(
        self,
        *,
        run: Run,
        rows: Sequence[Key],
        index: int,
        total: int,
        sigma: float | None = None,
        weights: Hashable = 0,
    ) -> Iterator[None]:
        """One forward, of step `index` (from 0) of `total`, carrying `rows` (branch, row) in their order.

        `sigma` is the call's noise level, `weights` whatever changes when LoRAs or their strengths do. What
        was learnt is kept only when the `with` is left without an exception.
        """
        if self._passing is not None:
            raise InternalError("A step of the step cache began before the last one ended.")
        passing = self._open(run, rows, index, total, sigma, weights)
        self._local.passing = passing
        try:
            yield
        finally:
            self._local.passing = None
        self._close(passing)

    def answer(self, call: Call) -> Any:
        """Answer a block's call; outside of a step it is the block's own answer."""
        passing = self._passing
        if passing is None:
            return call.site.forward(*call.args, **call.kwargs)
        return passing.through(call)

    @property
    def _passing(self) -> Passing | None:
        passing: Passing | None = getattr(self._local, "passing", None)
        return passing

    def _open(
        self, run: Run, rows: Sequence[Key], index: int, total: int, sigma: float | None, weights: Hashable
    ) -> Passing:
        if not 0 <= index < total:
            raise InvalidRequestError(f"Step cache: step {index} is not one of {total}.")
        if len(set(rows)) != len(rows):
            raise InternalError(f"The step cache was told of the same row twice: {list(rows)}.")
        if run not in self._runs:
            self.begin(run, total=total)
        record = self._runs[run]
        if record.plan is None or record.plan.total != total:
            raise InvalidRequestError(
                f"Step cache: a run of {record.plan and record.plan.total} steps has now {total}."
            )
        step, position = record.place(index, sigma)
        last = self.sites[record.plan.last].pattern
        place = Place(run, tuple(rows), step, position, weights)
        return Passing(record.plan, place, self._store, last.dim, last.joint, self.reduce)

    def _close(self, passing: Passing) -> None:
        if not passing.complete:
            return
        place, record = passing.place, self._runs.get(passing.place.run)
        if record is None:  # dropped meanwhile: nothing may come back
            return
        refused = passing.commit()
        record.tally.count(passing.plan, place.step, dict(zip(place.keys, passing.needs, strict=True)))
        record.tally.measure(place.step, passing.distance)
        record.tally.peak_bytes = max(record.tally.peak_bytes, self._store.bytes_of(place.run))
        if refused:
            record.tally.note(
                f"The step cache is full: {refused} bytes more do not fit its budget of {self._store.budget} "
                "bytes, so some rows are computed at every step. Raise OUTBOARD_CACHE_BUDGET, or lower the "
                "batch, the size or taylorseer_order."
            )


def install(model: Model, settings: Settings, *, budget: int = 0, reduce: Reduce | None = None) -> StepCache:
    """Put a cache on `model`. Compile its blocks before, cut its tokens over ranks afterwards.

    Raises UnsupportedRequestError for a network without a pattern, InvalidRequestError for settings that its
    number of blocks forbids, InternalError when it has a cache already.
    """
    attributes = vars(model.module)
    if CACHE in attributes:
        raise InternalError(f"{model.adapter.title} has a step cache already; remove it first.")
    sites = sites_of(model.module)
    check_blocks(settings, len(sites))
    cache = StepCache(sites, settings, budget=budget, reduce=reduce)
    for site in sites:
        attach(site, cache.answer)
    attributes[CACHE] = cache
    return cache


def installed(model: Model) -> StepCache | None:
    """The cache of a model."""
    cache: StepCache | None = vars(model.module).get(CACHE)
    return cache


def remove(model: Model) -> None:
    """Take the cache off; the model is then what it was before. Without one, nothing happens."""
    cache = installed(model)
    if cache is None:
        return
    for site in cache.sites:
        detach(site)
    del vars(model.module)[CACHE]
