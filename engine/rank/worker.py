"""The rank's main loop: takes one command after another, computes it, and answers to the end exactly once.

A command has two parts. What may fail on one rank alone comes first: reading the message, finding the model,
loading it. The ranks then agree to go on, and compute together.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch

from ...protocol.codec import Envelope, decode, encode
from ...protocol.errors import CancelledError, OutboardError, ProtocolError, UnsupportedRequestError
from ...protocol.failure import to_message
from ...protocol.messages import Message
from ...protocol.messages.client import CloseRun, Load, Predict, Run
from ...protocol.messages.common import Slot
from ...protocol.messages.control import Unload, Unloaded
from ...protocol.messages.engine import Closed, Loaded, Prediction, Progress, Result
from ...protocol.shm import Segments
from ...protocol.torch import to_wire
from ..link import Done, EndSession, RankSpec, Reply
from ..parallel.layout import Layout
from .adapters import AdapterStore
from .blobs import BlobStore
from .cache_wish import config_from
from .device import free_bytes, peak_bytes, reset_peak
from .dtype import dtype_name
from .failure import as_outboard
from .interruption import interruptible
from .io import Line
from .peers import Peers, agreed
from .report import run_report
from .residency import HEADROOM, Loan, Residency, Wanted
from .run import loop_of, prepare_loop
from .sharing import Sharing, rows_of
from .step_cache import Caches
from .steps import Accounts, predict, prepare_call
from .tickets import Ticket
from .wardrobe import Worn

PROGRESS_EVERY = 0.1

Work = Callable[[], Message]
"""The second part of a command."""


@dataclass(eq=False)
class Command:
    """One task on its way: what has been found of it so far, and what must be done at its end.

    `together` from when other ranks compute with this one.
    """

    ticket: Ticket
    message: Message | None = None
    slot: Slot | None = None
    wanted: Wanted | None = None
    layout: Layout = field(default_factory=Layout)
    together: bool = False
    cleanup: ExitStack = field(default_factory=ExitStack)


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
        peers: Peers,
    ) -> None:
        self._spec = spec
        self._device = device
        self._line = line
        self._blobs = blobs
        self._adapters = adapters
        self._segments = segments
        self._peers = peers
        self._sharing = Sharing(spec, device)
        self._caches = Caches(config_from(spec.cache))
        self._accounts = Accounts(self._caches)
        self._residency = Residency(device, spec.dtype, spec.memory_budget, spec.adapter_budget)
        self._handlers: Mapping[type[Message], Callable[[Any], Work]] = {
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
        command = Command(ticket)
        answer: Message | None = None
        failure: OutboardError | None = None
        with command.cleanup:
            try:
                work = self._prepared(command)
                command.together = self._peers.world > 1
                answer = work()
            except Exception as error:  # noqa: BLE001 - the process's one boundary: every command is answered
                failed = as_outboard(error, ticket.task.type)
                if command.together and not isinstance(failed, CancelledError):
                    # The others may not have failed, and wait: the supervisor finds out, and answers.
                    failure = failed
                else:
                    answer = to_message(failed)
        # Facts first: whoever has the answer and asks for the status finds it already told.
        self._line.done(ticket, self._facts(ticket, failure))
        if answer is not None:
            self._tell(ticket, answer, command.slot)

    def _prepared(self, command: Command) -> Work:
        """The first part of a command; every rank gets through it, or none does."""
        doing = command.ticket.task.type
        with agreed(self._peers, doing):
            self._read(command)
        if command.wanted is not None:
            command.layout = self._layout(command.wanted, command.message)
            self._sharing.meet(command.layout)
        with agreed(self._peers, doing):
            return self._handler(command.message)(command)

    def _read(self, command: Command) -> None:
        ticket = command.ticket
        opener = self._segments.opener(ticket.task.session)
        command.message = message = decode(ticket.frames, opener=opener).message
        command.slot = getattr(message, "reply", None)
        ticket.check()
        if isinstance(message, Load | Run | Predict):
            path = Path(ticket.task.path)
            command.wanted = self._residency.find(path, message.model, message.settings)

    def _layout(self, wanted: Wanted, message: Message | None) -> Layout:
        room: int | None = None
        if self._peers.world > 1 and self._device.type == "cuda":
            free = free_bytes(self._device) + self._residency.nbytes
            room = int(self._peers.least(free) / HEADROOM)
        return self._sharing.choose(wanted, rows_of(message), room)

    def _handler(self, message: Message | None) -> Callable[[Any], Work]:
        handler = self._handlers.get(type(message)) if message is not None else None
        if handler is None:
            raise ProtocolError(f"A rank does not know the command {message.type if message else None}.")
        return handler

    def _load(self, command: Command) -> Work:
        loan = self._borrow(command)

        def work() -> Loaded:
            model = loan.model
            self._sharing.apply(model, command.layout)
            dtype = dtype_name(model.dtype)
            return Loaded(family=model.family, dtype=dtype, nbytes=model.nbytes, seconds=loan.seconds_loading)

        return work

    def _run(self, command: Command) -> Work:
        run, ticket = command.message, command.ticket
        assert isinstance(run, Run)
        loan, worn = self._dressed(run.adapters, command)
        reset_peak(self._device)
        key = (ticket.task.session, ticket.task.key)
        cached = self._caches.open(run.cache, loan.model, run.model.name, key, loop_of(run))
        command.cleanup.callback(cached.forget)
        check, tell = partial(ticket.check_with, self._peers), partial(self._tell, ticket)
        loop = prepare_loop(run, loan.model, self._blobs, check=check, tell=tell, cached=cached)

        def work() -> Result:
            self._sharing.apply(loan.model, command.layout)
            with self._interruptible(loan, ticket):
                outcome = loop.sample(self._peers)
            report = run_report(
                run,
                loan.model,
                outcome,
                worn,
                layout=str(command.layout),
                peaks=self._peers.each(peak_bytes(self._device)),
                seconds_loading=loan.seconds_loading + worn.seconds,
                seconds_queued=ticket.task.queued,
                resident_bytes=self._residency.nbytes,
            )
            return Result(latent=to_wire(outcome.latent), report=report, momenta=list(outcome.momenta))

        return work

    def _predict(self, command: Command) -> Work:
        request, ticket = command.message, command.ticket
        assert isinstance(request, Predict)
        loan, worn = self._dressed(request.adapters, command)
        account = self._accounts.open(ticket.task.session, request, loan.model)
        call = prepare_call(request, loan.model, self._blobs, account)

        def work() -> Prediction:
            account.seconds_loading += loan.seconds_loading
            account.wear(worn)
            account.seconds_queued += ticket.task.queued
            account.layout = str(command.layout)
            self._sharing.apply(loan.model, command.layout)
            ticket.check_with(self._peers)
            with self._interruptible(loan, ticket):
                v, seconds = predict(call, loan.model, account)
            return Prediction(v=to_wire(v), seconds=seconds)

        return work

    def _close_run(self, command: Command) -> Work:
        message, session = command.message, command.ticket.task.session
        assert isinstance(message, CloseRun)

        def work() -> Closed:
            account = self._accounts.close(session, message.run)
            # A run that failed at its first call may be known to some ranks only.
            if not self._peers.least(int(account is not None)) or account is None:
                return Closed()
            return Closed(report=account.report(self._peers, self._residency.nbytes))

        return work

    def _unload(self, command: Command) -> Work:
        message = command.message
        assert isinstance(message, Unload)
        return lambda: Unloaded(bytes_freed=self._residency.unload(message.model))

    def _dressed(self, adapters: str, command: Command) -> tuple[Loan, Worn]:
        """The model of a request, wearing the request's adapters and nothing else."""
        # First: a set that is not here is sent again, and nothing may have been done by then.
        entries = self._adapters.get(adapters)
        if entries and command.layout.tp > 1:
            raise UnsupportedRequestError(
                f"LoRAs cannot be worn by a model whose weights are cut by tp {command.layout.tp} yet.",
                hint="Use ulysses in place of tp, or remove the LoRA.",
            )
        loan = self._borrow(command)
        return loan, loan.wardrobe.wear(entries)

    def _borrow(self, command: Command) -> Loan:
        """The model of a request, with progress events and a cancel check while it loads."""
        told = 0.0
        wanted, ticket = command.wanted, command.ticket
        assert wanted is not None

        def progress(done: int, total: int) -> None:
            nonlocal told
            ticket.check()
            now = time.monotonic()
            if now - told >= PROGRESS_EVERY or done == total:
                told = now
                self._tell(ticket, Progress(phase="loading", done=done, total=total, text=wanted.name))

        return self._residency.lend(wanted, progress, command.layout.tp)

    def _interruptible(self, loan: Loan, ticket: Ticket) -> AbstractContextManager[None]:
        alone = self._peers.world == 1
        return interruptible(loan.model.module, ticket.check) if alone else nullcontext()

    def _tell(self, ticket: Ticket, message: Message, slot: Slot | None = None) -> None:
        if self._spec.rank != 0:
            return
        task = ticket.task
        placer = self._segments.placer(task.session, slot) if slot else None
        frames = encode(Envelope(message=message, id=task.id, session=task.session), placer)
        self._line.send(Reply(task.key, terminal=message.terminal), frames)

    def _facts(self, ticket: Ticket, failure: OutboardError | None) -> Done:
        return Done(
            key=ticket.task.key,
            resident_bytes=self._residency.nbytes,
            peak_bytes=peak_bytes(self._device),
            blobs_bytes=self._blobs.nbytes + self._adapters.nbytes,
            models=[model.model_dump() for model in self._residency.describe()],
            failure=to_message(failure).model_dump() if failure else {},
        )
