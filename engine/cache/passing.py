"""One forward of a network under the cache: what each row of it needs, and what is remembered of it.

A row is computed or reused by its own past alone. Where rows of one batch differ, the skippable blocks run on
those that need them, so that no row is ever what it would not be on its own.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

from ...protocol.errors import InternalError
from . import rows
from .decision import Counters, settle
from .forecast import remember
from .plan import Need, Plan
from .seam import Call
from .similarity import Reduce, differences
from .state import Key, RowState, Run, Signature, Store
from .streams import Streams, added, extrapolated, stacked


@dataclass(frozen=True)
class Place:
    """Where a forward is: its run and rows, the step by number and by position, the version of the weights.

    `position` is None for a call that has no place in the schedule: it is computed and not remembered.
    """

    run: Run
    keys: Sequence[Key]
    step: int
    position: float | None
    weights: Hashable = 0


@dataclass(eq=False)
class Passing:
    """A forward on its way through the blocks; nothing of it reaches the store before `commit`."""

    plan: Plan
    place: Place
    store: Store
    dim: int
    joint_after: bool
    reduce: Reduce | None = None
    needs: list[Need] = field(default_factory=list)
    complete: bool = False
    _states: list[RowState | None] = field(default_factory=list)
    _signature: Signature = ()
    _entry: Streams | None = None
    _before: Streams | None = None
    _probe: Tensor | None = None
    _outcome: Streams | None = None
    _differences: dict[int, float] = field(default_factory=dict)

    def through(self, call: Call) -> Any:
        """Answer a block's call: compute it, for all rows or some, or let its tokens pass."""
        index, plan = call.site.index, self.plan
        if index == 0:
            self._enter(call.streams)
        if index == plan.first:
            self._decide(call.streams)
        streams = self._skippable(call) if plan.first <= index <= plan.last else call.run()
        if index == plan.first - 1:
            self._look(streams)
        if index == plan.last:
            streams = self._leave(streams)
        return call.answer(streams)

    def commit(self) -> int:
        """Remember what was computed; returns the bytes that found no room in the store."""
        if self.place.position is None or not self.complete:
            return 0
        states = {key: state for key, state in zip(self.place.keys, self._states, strict=True) if state}
        return self.store.commit(self.place.run, states)

    @property
    def distance(self) -> float | None:
        """The largest distance that was measured, None when none was."""
        return max(self._differences.values(), default=None)

    @property
    def computing(self) -> list[int]:
        """The rows whose skippable blocks run."""
        return [number for number, need in enumerate(self.needs) if need is Need.COMPUTE]

    @property
    def reusing(self) -> list[int]:
        return [number for number, need in enumerate(self.needs) if need is Need.REUSE]

    def _enter(self, entry: Streams) -> None:
        """Find each row's past, and decide what can be decided without looking at the tokens."""
        if self._signature:
            raise InternalError("A second forward began inside one step of the step cache.")
        batch = entry.image.shape[self.dim]
        if batch != len(self.place.keys):
            raise InternalError(f"The step cache was told of {len(self.place.keys)} rows; {batch} came.")
        self._entry = entry
        self._signature = (
            _shapes(entry, self.dim),
            entry.image.dtype,
            entry.image.device,
            self.place.weights,
        )
        self._states = [self._past(key) for key in self.place.keys]
        self.needs = [self._need(state) for state in self._states]

    def _past(self, key: Key) -> RowState | None:
        """The row's state; one from a later place was left by a loop that has begun again, and is void."""
        state, position = self.store.get(self.place.run, key, self._signature), self.place.position
        later = state is not None and position is not None and position < (state.counters.level or 0.0)
        return None if later else state

    def _need(self, state: RowState | None) -> Need:
        if state is None or self.place.position is None:
            return Need.COMPUTE
        if self.plan.missed(state.computed, self.place.step):
            return Need.COMPUTE
        return settle(self.plan.need(self.place.step), state.counters, self.plan.settings)

    def _look(self, streams: Streams) -> None:
        """What the first blocks did to the image tokens."""
        assert self._entry is not None
        image = streams.image
        if self._entry.text is not None and streams.text is None:
            image = image[:, self._entry.text.shape[1] :]
        self._probe = None if self.plan.static else image - self._entry.image
        self._entry = None

    def _decide(self, before: Streams) -> None:
        self._compare()
        self._before = before
        if self.reusing:
            self._outcome = self._extrapolate(before.joined() if self.joint_after else before)

    def _compare(self) -> None:
        asked = [number for number, need in enumerate(self.needs) if need is Need.COMPARE]
        if not asked:
            return
        previous = [
            state.probe for number in asked if (state := self._states[number]) and state.probe is not None
        ]
        measured = differences(previous, [self._probe_of(number) for number in asked], self.reduce)
        self._differences = dict(zip(asked, measured, strict=True))
        threshold = self.plan.settings.residual_diff_threshold
        for number, difference in self._differences.items():
            self.needs[number] = Need.REUSE if difference < threshold else Need.COMPUTE

    def _probe_of(self, number: int) -> Tensor:
        assert self._probe is not None
        return self._probe if len(self.needs) == 1 else rows.row(self._probe, number, self.dim)

    def _extrapolate(self, before: Streams) -> Streams:
        """The rows that skip, as the last skippable block would have left them."""
        position = self.place.position
        assert position is not None
        parts = []
        for number in self.reusing:
            state = self._states[number]
            assert state is not None
            row = before.row(number, len(self.needs), self.dim)
            text_too = self.plan.settings.enable_encoder_taylorseer
            parts.append(extrapolated(row, state.history, position, text_too=text_too))
        return stacked(parts, self.dim)

    def _skippable(self, call: Call) -> Streams:
        if not self.reusing:
            return call.run()
        if not self.computing:
            return call.streams
        tokens = call.streams
        # Rows that skip ride along untouched: what the network does between blocks needs the whole batch.
        computed = call.run_rows(self.computing, len(self.needs))
        if computed.text is None:
            tokens = Streams(tokens.image, None)
        return tokens.put(computed, self.computing, self.dim)

    def _leave(self, after: Streams) -> Streams:
        assert self._before is not None
        before = self._before.joined() if self.joint_after else self._before
        self._before = None
        self.complete = True
        if self.place.position is not None:
            for number, state in enumerate(self._states):
                self._states[number] = self._next(number, state, before, after)
        if self._outcome is None:
            return after
        return self._outcome if not self.computing else after.put(self._outcome, self.reusing, self.dim)

    def _next(self, number: int, state: RowState | None, before: Streams, after: Streams) -> RowState:
        """The row's state once this forward is over."""
        position = self.place.position
        assert position is not None
        reused = self.needs[number] is Need.REUSE
        counters = (state.counters if state else Counters()).after(
            reused=reused, level=position, difference=self._differences.get(number, 0.0)
        )
        if reused:
            assert state is not None
            return replace(state, counters=counters)
        batch = len(self.needs)
        new = added(before.row(number, batch, self.dim), after.row(number, batch, self.dim), position)
        history = remember(state.history if state else (), new, self.plan.settings.taylorseer_order)
        probe = None if self._probe is None else _kept(self._probe_of(number), batch)
        return RowState(self._signature, history, probe, counters)


def _kept(tensor: Tensor, batch: int) -> Tensor:
    """A row that outlives its batch: a view would keep all of it alive."""
    return tensor if batch == 1 else tensor.clone()


def _shapes(streams: Streams, dim: int) -> tuple[Hashable, ...]:
    parts = (streams.image, streams.text)
    return tuple(None if part is None else (*part.shape[:dim], *part.shape[dim + 1 :]) for part in parts)
