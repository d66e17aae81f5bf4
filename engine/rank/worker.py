"""The rank's main loop: takes one command after another, computes it, and answers to the end exactly once."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch

from ...protocol.codec import Envelope, decode, encode
from ...protocol.errors import ProtocolError
from ...protocol.failure import to_message
from ...protocol.messages import Message
from ...protocol.messages.client import CloseRun, Load, Predict, Run
from ...protocol.messages.common import Slot
from ...protocol.messages.control import Unload, Unloaded
from ...protocol.messages.engine import Closed, Loaded, Prediction, Progress, Result
from ...protocol.shm import Segments
from ...protocol.torch import to_wire
from ..link import Done, EndSession, RankSpec, Reply
from .adapters import AdapterStore
from .blobs import BlobStore
from .cache_wish import config_from
from .device import peak_bytes, reset_peak
from .dtype import dtype_name
from .failure import as_outboard
from .interruption import interruptible
from .io import Line
from .report import run_report
from .residency import Loan, Residency
from .run import loop_of, run_loop
from .step_cache import Caches
from .steps import Accounts, predict
from .tickets import Ticket
from .wardrobe import Worn

PROGRESS_EVERY = 0.1


class Worker:
    """Computes the commands of one rank; rank 0 also speaks for the group."""

    def __init__(
        self,
        spec: RankSpec,
        device: torch.device,
        line: Line,
        blobs: BlobStore,
        adapters: AdapterStore,
        segments: Segments,
    ) -> None:
        self._spec = spec
        self._device = device
        self._line = line
        self._blobs = blobs
        self._adapters = adapters
        self._segments = segments
        self._caches = Caches(config_from(spec.cache))
        self._accounts = Accounts(self._caches)
        self._residency = Residency(device, spec.dtype, spec.memory_budget, spec.adapter_budget)
        self._handlers: Mapping[type[Message], Callable[[Any, Ticket], Message]] = {
            Load: self._load,
            Run: self._run,
            Predict: self._predict,
            CloseRun: self._close_run,
            Unload: self._unload,
        }

    def serve(self) -> None:
        """Work until the supervisor says exit."""
        while (command := self._line.next()) is not None:
            if isinstance(command, EndSession):
                self._accounts.end_session(command.session)
                self._segments.forget(command.session)
            else:
                self._execute(command)

    def _execute(self, ticket: Ticket) -> None:
        slot: Slot | None = None
        try:
            message = decode(ticket.frames, opener=self._segments.opener(ticket.task.session)).message
            slot = getattr(message, "reply", None)
            ticket.check()
            answer = self._handler(message)(message, ticket)
        except Exception as error:  # noqa: BLE001 - the process's one boundary: every command is answered
            answer = to_message(as_outboard(error, ticket.task.type))
        # Facts first: whoever has the answer and asks for the status finds it already told.
        self._line.done(ticket, self._facts(ticket))
        self._tell(ticket, answer, slot)

    def _handler(self, message: Message) -> Callable[[Any, Ticket], Message]:
        handler = self._handlers.get(type(message))
        if handler is None:
            raise ProtocolError(f"A rank does not know the command {message.type}.")
        return handler

    def _load(self, message: Load, ticket: Ticket) -> Loaded:
        loan = self._borrow(message, ticket)
        return Loaded(
            family=loan.model.family,
            dtype=dtype_name(loan.model.dtype),
            nbytes=loan.model.nbytes,
            seconds=loan.seconds_loading,
        )

    def _run(self, run: Run, ticket: Ticket) -> Result:
        loan, worn = self._dressed(run, ticket)
        reset_peak(self._device)
        tell = partial(self._tell, ticket)
        key = (ticket.task.session, ticket.task.key)
        cached = self._caches.open(run.cache, loan.model, run.model.name, key, loop_of(run))
        try:
            with self._interruptible(loan, ticket):
                outcome = run_loop(run, loan.model, self._blobs, check=ticket.check, tell=tell, cached=cached)
        finally:
            cached.forget()
        report = run_report(
            run,
            loan.model,
            outcome,
            worn,
            world_size=self._spec.world_size,
            seconds_loading=loan.seconds_loading + worn.seconds,
            seconds_queued=ticket.task.queued,
            resident_bytes=self._residency.nbytes,
        )
        return Result(latent=to_wire(outcome.latent), report=report, momenta=list(outcome.momenta))

    def _predict(self, request: Predict, ticket: Ticket) -> Prediction:
        loan, worn = self._dressed(request, ticket)
        account = self._accounts.open(ticket.task.session, request, loan.model)
        account.seconds_loading += loan.seconds_loading
        account.wear(worn)
        account.seconds_queued += ticket.task.queued
        with self._interruptible(loan, ticket):
            v, seconds = predict(request, loan.model, self._blobs, account)
        return Prediction(v=to_wire(v), seconds=seconds)

    def _close_run(self, message: CloseRun, ticket: Ticket) -> Closed:
        account = self._accounts.close(ticket.task.session, message.run)
        if account is None:
            return Closed()
        return Closed(report=account.report(self._spec.world_size, self._residency.nbytes))

    def _unload(self, message: Unload, _: Ticket) -> Unloaded:
        return Unloaded(bytes_freed=self._residency.unload(message.model))

    def _dressed(self, message: Run | Predict, ticket: Ticket) -> tuple[Loan, Worn]:
        """The model of a request, wearing the request's adapters and nothing else."""
        # First: a set that is not here is sent again, and nothing may have been done by then.
        adapters = self._adapters.get(message.adapters)
        loan = self._borrow(message, ticket)
        return loan, loan.wardrobe.wear(adapters)

    def _borrow(self, message: Load | Run | Predict, ticket: Ticket) -> Loan:
        """The model of a request, with progress events and a cancel check while it loads."""
        told = 0.0

        def progress(done: int, total: int) -> None:
            nonlocal told
            ticket.check()
            now = time.monotonic()
            if now - told >= PROGRESS_EVERY or done == total:
                told = now
                self._tell(ticket, Progress(phase="loading", done=done, total=total, text=message.model.name))

        return self._residency.get(Path(ticket.task.path), message.model, message.settings, progress)

    def _interruptible(self, loan: Loan, ticket: Ticket) -> AbstractContextManager[None]:
        alone = self._spec.world_size == 1
        return interruptible(loan.model.module, ticket.check) if alone else nullcontext()

    def _tell(self, ticket: Ticket, message: Message, slot: Slot | None = None) -> None:
        if self._spec.rank != 0:
            return
        task = ticket.task
        placer = self._segments.placer(task.session, slot) if slot else None
        frames = encode(Envelope(message=message, id=task.id, session=task.session), placer)
        self._line.send(Reply(task.key, terminal=message.terminal), frames)

    def _facts(self, ticket: Ticket) -> Done:
        return Done(
            key=ticket.task.key,
            resident_bytes=self._residency.nbytes,
            peak_bytes=peak_bytes(self._device),
            blobs_bytes=self._blobs.nbytes + self._adapters.nbytes,
            models=[model.model_dump() for model in self._residency.describe()],
        )
