"""Between a denoise loop and the cache: what a loop says of a forward, in the cache's terms."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Protocol

from ..models.model import Model
from .choice import Choice
from .controller import StepCache, install, installed
from .safety import objection
from .settings import Settings
from .similarity import Reduce
from .state import Key, Run
from .tally import Tally


class Carried(Protocol):
    """What one forward carries: `rows` rows of each of `branches`, in this order, at a step and its sigma."""

    @property
    def branches(self) -> Sequence[Hashable]: ...

    @property
    def rows(self) -> int: ...

    @property
    def step(self) -> int: ...

    @property
    def sigma(self) -> float: ...


@dataclass(frozen=True, eq=False)
class Prepared:
    """What a run samples with; `notes` say why it has no cache although one was chosen."""

    cache: StepCache | None = None
    settings: Settings | None = None
    notes: tuple[str, ...] = ()


def prepare(
    model: Model,
    choice: Choice | None,
    *,
    sampler: str,
    options: Mapping[str, object],
    steps: int,
    forced: bool = False,
    budget: int = 0,
    reduce: Reduce | None = None,
) -> Prepared:
    """The cache of `model` for a run of `steps` steps, installed now if it was not; none without a choice.

    A sampler that adds noise of its own has none unless `forced`. What cannot be raises InvalidRequestError
    or UnsupportedRequestError.
    """
    if choice is None or steps < 1:
        return Prepared()
    reason = "" if forced else objection(sampler, options)
    if reason:
        return Prepared(notes=(reason,))
    settings = choice.settings(model.family, steps)
    cache = installed(model) or install(model, settings, budget=budget, reduce=reduce)
    return Prepared(cache, settings)


#: The context in which a forward that carries this is made.
Around = Callable[[Carried], AbstractContextManager[None]]


def rows_of(carried: Carried) -> list[Key]:
    """The keys of a forward's rows, in their order."""
    return [(branch, row) for branch in carried.branches for row in range(carried.rows)]


@contextmanager
def around_forwards(
    cache: StepCache | None,
    run: Run,
    sigmas: Sequence[float],
    *,
    settings: Settings | None = None,
    weights: Callable[[], Hashable] = lambda: 0,
) -> Iterator[tuple[Around, Tally | None]]:
    """What to make each forward of a run in, and the run's tally; without a cache, nothing.

    `sigmas` fall from the first noise level to the last; `weights` is asked at each forward for the version
    of the weights. Settings that do not fit raise InvalidRequestError before the first forward, and the run
    is forgotten however it ends.
    """
    total = len(sigmas) - 1
    if cache is None or total < 1:
        yield (lambda _: nullcontext()), None
        return
    with cache.running(run, total=total, sigmas=sigmas, settings=settings) as tally:
        yield (
            lambda carried: cache.step(
                run=run,
                rows=rows_of(carried),
                # A call at the last sigma, behind the last step, is one of that step.
                index=min(carried.step, total - 1),
                total=total,
                sigma=carried.sigma,
                weights=weights(),
            ),
            tally,
        )
