"""Between a denoise loop and the cache: what a loop says of a forward, in the cache's terms."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Protocol

from .controller import StepCache
from .settings import Settings
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
    """One run's forwards: what to make each of them in, and the run's tally; nothing at all without a cache.

    `sigmas` fall from the first noise level to the last; `weights` is asked at each forward for the version of
    the weights. Settings that do not fit raise InvalidRequestError before the first forward, and the run is
    forgotten however it ends.
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
