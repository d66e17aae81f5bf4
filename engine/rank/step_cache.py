"""The step cache on a rank: which runs use that of which model, from their first call to their end.

A resident model has one cache at most, from the first run that needs it to the last.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from weakref import WeakKeyDictionary, ref

from torch import Tensor

from ...protocol.errors import InvalidRequestError, UnsupportedRequestError
from ...protocol.messages.cache import CacheReport, CacheSettings
from ..cache.config import CacheConfig
from ..cache.controller import StepCache, install, installed, remove
from ..cache.plan import Plan
from ..cache.safety import objection
from ..cache.seam import sites_of
from ..cache.settings import Settings
from ..cache.similarity import Reduce
from ..cache.tally import Tally
from ..models.model import Model
from ..parallel.apply import added_up, own_rows
from ..sampling.call import Call
from .cache_report import cache_report, gathered
from .cache_wish import Wish, wish_of
from .peers import Peers

RunKey = tuple[str, str]
"""The session and the run's own name: what no two runs share."""

NO_SCHEDULE = "Step cache off: the run does not say its sigmas, so no call has a place among its steps."
NO_BRANCHES = "A call did not say whose rows it carries, and was computed."
TWICE = "A call carried rows of one conditioning twice, and was computed."
RELOADED = "The model was loaded anew during the run, which began its steps' memory anew."


@dataclass(frozen=True)
class Loop:
    """The sampling that a run is: what the cache must know of it. `obstacle`: why no step may be reused."""

    sampler: str
    options: Mapping[str, object]
    sigmas: Sequence[float]
    obstacle: str = ""

    @property
    def total(self) -> int:
        return len(self.sigmas) - 1


class CachedRun:
    """One run's use of a cache, or its reasons to use none. It holds no model: unloading frees that."""

    def __init__(self, users: Users, key: RunKey, loop: Loop, wish: Wish | None = None) -> None:
        self._users = users
        self._key = key
        self._loop = loop
        self._wish = wish
        self._settings: Settings | None = None
        self._plan: Plan | None = None
        self._model: ref[Model] | None = None
        self._tallies: list[Tally] = [Tally()]
        self.weights = ""
        """What the model wears: one that wears something else has no use for what was remembered."""

    def begin(self, model: Model) -> None:
        """Settle what will be done. Raises InvalidRequestError, or UnsupportedRequestError for a model."""
        if self._wish is None:
            return
        against = self._against(self._wish)
        if against:
            self._note(against)
            return
        try:
            settings = self._wish.choice.settings(model.family, self._loop.total)
            plan = Plan.of(settings, self._loop.total, len(sites_of(model.module)))
        except (InvalidRequestError, UnsupportedRequestError) as error:
            if self._wish.own:
                raise
            self._note(f"Step cache off: {error.message}")
            return
        self._settings, self._plan = settings, plan
        self._join(model)

    def step(self, model: Model, call: Call) -> AbstractContextManager[None]:
        """What the forward of `call` runs in."""
        if self._settings is None:
            return nullcontext()
        if not call.branches or len(set(call.branches)) < len(call.branches):
            self._note(TWICE if call.branches else NO_BRANCHES)
            return nullcontext()
        total = self._loop.total
        return self._joined(model).step(
            run=self._key,
            rows=own_rows(model, call.keys),
            index=min(call.step, total - 1),
            total=total,
            sigma=call.sigma,
            weights=self.weights,
        )

    def forget(self) -> None:
        """Drop what the run remembers; it may go on, and computes its next steps."""
        model = None if self._model is None else self._model()
        if model is not None:
            self._users.leave(model, self._key)
        self._model = None

    def report(self, peers: Peers) -> CacheReport | None:
        """What all ranks did; None when nobody asked for a cache."""
        if self._wish is None:
            return None
        tallies = self._tallies if self._plan is None else gathered(self._tallies, self._plan, peers)
        return cache_report(self._wish.name, self._settings, self._plan, self._loop.total, tallies)

    def _against(self, wish: Wish) -> str:
        if self._loop.obstacle:
            return f"Step cache off: {self._loop.obstacle}"
        if self._loop.total < 1:
            return NO_SCHEDULE
        against = objection(self._loop.sampler, self._loop.options)
        if against and wish.force:
            self._note(f"Forced against this: {against}")
            return ""
        return against

    def _joined(self, model: Model) -> StepCache:
        """The cache of `model`, which may be another object than before, after an unload."""
        cache = installed(model)
        if cache is None or self._model is None or self._model() is not model:
            if self._model is not None:
                self._note(RELOADED)
            cache = self._join(model)
        return cache

    def _join(self, model: Model) -> StepCache:
        assert self._settings is not None
        cache = self._users.join(model, self._key, self._settings)
        self._model = ref(model)
        sigmas, total = self._loop.sigmas, self._loop.total
        self._tallies.append(cache.begin(self._key, total=total, sigmas=sigmas, settings=self._settings))
        return cache

    def _note(self, text: str) -> None:
        self._tallies[0].note(text)


class Users:
    """The runs that use the cache of each model; the last one to leave takes the cache off."""

    def __init__(self, budget: int = 0) -> None:
        self._budget = budget
        self._runs: WeakKeyDictionary[Model, set[RunKey]] = WeakKeyDictionary()

    def join(self, model: Model, run: RunKey, settings: Settings) -> StepCache:
        cache = installed(model)
        if cache is None:
            cache = install(model, settings, budget=self._budget, reduce=_over_ranks(model))
        self._runs.setdefault(model, set()).add(run)
        return cache

    def leave(self, model: Model, run: RunKey) -> None:
        cache, runs = installed(model), self._runs.get(model, set())
        runs.discard(run)
        if cache is not None:
            cache.drop(run)
        if not runs:
            self._runs.pop(model, None)
            remove(model)


class Caches:
    """Opens the cached runs of one rank, by the engine's configuration."""

    def __init__(self, config: CacheConfig) -> None:
        self._config = config
        self._users = Users(config.budget)

    def open(self, wish: CacheSettings | None, model: Model, name: str, key: RunKey, loop: Loop) -> CachedRun:
        """The run `key` of the file `name`. Raises as `CachedRun.begin`; whoever opens a run forgets it."""
        run = CachedRun(self._users, key, loop, wish_of(wish, self._config, name))
        run.begin(model)
        return run


def _over_ranks(model: Model) -> Reduce:
    """Adds up over the ranks that share a forward of `model`, as it is shared out at that time."""
    held = ref(model)

    def reduce(tensor: Tensor) -> Tensor:
        known = held()
        return tensor if known is None else added_up(known, tensor)

    return reduce


def uncached() -> CachedRun:
    """A run that uses no cache, because there is none to use."""
    return CachedRun(Users(), ("", ""), Loop("", {}, ()))
