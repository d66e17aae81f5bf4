"""One model file at one engine: what a MODEL's skeleton holds instead of weights."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from ..protocol.adapters import AdapterSet
from ..protocol.errors import OutboardError
from ..protocol.messages import Message
from ..protocol.messages.cache import CacheSettings, Schedule
from ..protocol.messages.client import CloseRun, Load, Predict, Run
from ..protocol.messages.common import ModelRef, ModelSettings, Report
from ..protocol.messages.control import Unload
from ..protocol.messages.engine import Closed, Loaded, Prediction, Result
from ..protocol.torch import from_wire, to_wire
from ..protocol.values import Tree
from . import interrupt
from .progress import LoadingProgress
from .session import Session
from .step_run import StepRun

UNLOAD_TIMEOUT = 10.0
#: Bytes per element of the widest dtype an engine computes in.
LARGEST_ITEM = 4


@dataclass(frozen=True, eq=False)
class Stepping:
    """A loop that runs in ComfyUI: why, with which sampler, and what the engine must know to cache it."""

    reason: str
    sampler: str
    schedule: Schedule
    cache: CacheSettings | None = None


class RemoteModel:
    """Loads, runs and drops one file. `footprint`: bytes it takes on the engine's device when resident."""

    def __init__(self, session: Session, ref: ModelRef, settings: ModelSettings, footprint: int) -> None:
        self.session = session
        self.ref = ref
        self.settings = settings
        self.footprint = footprint
        self.adapters = AdapterSet([])
        """What every call wears: the MODEL that is sampled with, or its current hooks, set it."""
        self._resident = 0
        self._resident_at = -1
        self._run: StepRun | None = None
        self._stepping: Stepping | None = None

    @property
    def resident_bytes(self) -> int:
        """What the engine holds of it, as far as this side knows."""
        return self._resident if self._resident_at == self.session.generation else 0

    def load(self) -> None:
        """Make the file resident, showing progress. Raises any OutboardError, or ComfyUI's interrupt."""
        self.session.ensure()
        if not self.resident_bytes:
            loaded = self._request(
                Load(model=self.ref, settings=self.settings), LoadingProgress(self.ref.name)
            )
            assert isinstance(loaded, Loaded)
            self._note_resident(loaded.nbytes)

    def unload(self) -> None:
        """Have the engine drop the file; an engine that is gone, or does not answer, is only logged."""
        self._resident = 0
        if not self.session.connected:
            return
        try:
            self.session.control(Unload(model=self.ref), timeout=UNLOAD_TIMEOUT)
        except OutboardError as error:
            logging.warning("Outboard: %s was not unloaded: %s", self.ref.name, error)

    def run(self, request: Run, on_event: Callable[[Message], None]) -> tuple[torch.Tensor, Result]:
        """A whole loop: the latent [B, C, ...] fp32 in model space on the CPU, and the engine's answer."""
        slot = self.session.slot(request.latent.nbytes)
        result = self._request(request.model_copy(update={"reply": slot}), on_event)
        assert isinstance(result, Result)
        self._note_resident(self._resident or self.footprint)
        return from_wire(result.latent).clone(), result

    @contextmanager
    def stepping(self, loop: Stepping, publish: Callable[[Report], object]) -> Iterator[None]:
        """Predictions inside the block belong to one run; its report is published at the end."""
        outer = self._run, self._stepping
        with self._new_run() as run:
            self._run, self._stepping = run, loop
            try:
                yield
            finally:
                self._run, self._stepping = outer
                closed = self._close(run.id)
        if closed is not None:
            publish(closed.model_copy(update={"reason": loop.reason, "sampler": loop.sampler}))

    def predict(
        self,
        x: torch.Tensor,
        timestep: torch.Tensor,
        sigma: float | None,
        branches: Sequence[str],
        arguments: Mapping[str, Any],
    ) -> torch.Tensor:
        """One call of the DiT: v of x's shape, on x's device, in the dtype the engine computed in."""
        if self._run is None:
            with self._new_run() as run:
                v = self._predict(run, x, timestep, sigma, branches, arguments)
                self._close(run.id)
            return v
        return self._predict(self._run, x, timestep, sigma, branches, arguments)

    def _predict(
        self,
        run: StepRun,
        x: torch.Tensor,
        timestep: torch.Tensor,
        sigma: float | None,
        branches: Sequence[str],
        arguments: Mapping[str, Any],
    ) -> torch.Tensor:
        loop = self._stepping
        request = Predict(
            run=run.id,
            model=self.ref,
            settings=self.settings,
            x=to_wire(x.detach().cpu()),
            timestep=to_wire(timestep.detach().float().cpu()),
            sigma=sigma,
            branches=list(branches),
            conditioning=run.repeated(arguments),
            schedule=loop.schedule if loop else None,
            cache=loop.cache if loop else None,
        )
        while True:
            changes = {
                "conditioning": {**request.conditioning, **run.fresh(arguments)},
                "adapters": self.session.adapt(self.adapters),
                "reply": self.session.slot(x.numel() * LARGEST_ITEM),
            }
            told = LoadingProgress(self.ref.name)
            prediction = self._request(request.model_copy(update=changes), told, run.look)
            assert isinstance(prediction, Prediction)
            if run.settled():
                return from_wire(prediction.v).to(x.device, copy=True)

    def intern(self, conditioning: Mapping[str, Tree]) -> dict[str, Tree]:
        """`conditioning` with its large tensors stored at the engine."""
        with interrupt.translated():
            stored: dict[str, Tree] = self.session.intern(conditioning)
        return stored

    @contextmanager
    def _new_run(self) -> Iterator[StepRun]:
        run = StepRun(self.session)
        done = False
        try:
            yield run
            done = True
        finally:
            run.close(reusable=done)

    def _request(
        self,
        message: Message,
        on_event: Callable[[Message], None],
        poll: Callable[[], None] = interrupt.check,
    ) -> Message:
        with interrupt.translated():
            return self.session.request(message, on_event=on_event, poll=poll)

    def _close(self, run: str) -> Report | None:
        """Best effort: a run that fails has its own error on the way, which this must not replace."""
        try:
            closed = self.session.request(CloseRun(run=run), poll=None)
        except OutboardError as error:
            logging.debug("Outboard: run %s was not closed: %s", run, error)
            return None
        return closed.report if isinstance(closed, Closed) else None

    def _note_resident(self, nbytes: int) -> None:
        self._resident = nbytes
        self._resident_at = self.session.generation
