"""Per-step runs: the loop is in ComfyUI, one Predict per model call, and the engine keeps the account."""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import dataclass, field

import torch

from ...protocol.errors import InvalidRequestError, OutOfMemoryError
from ...protocol.messages.cache import Schedule
from ...protocol.messages.client import Predict
from ...protocol.messages.common import Report
from ...protocol.torch import from_wire
from ..models.model import Model
from ..sampling.call import Call, step_at
from .blobs import BlobStore
from .cache_report import steps_reused
from .conditioning import on_device, wire_bytes
from .device import describe, peak_bytes, release_memory, reset_peak
from .dtype import dtype_name
from .kept import Kept
from .network import Rows, evaluate
from .peers import Peers
from .step_cache import CachedRun, Caches, Loop, uncached
from .wardrobe import Worn


@dataclass(eq=False)
class Account:
    """What one per-step run has cost so far. A step is a new noise level, whatever calls it takes."""

    model: str
    family: str
    dtype: str
    device: torch.device
    low_bit_layers: dict[str, int] = field(default_factory=dict)
    forwards: int = 0
    steps: int = 0
    seconds: float = 0.0
    seconds_loading: float = 0.0
    seconds_queued: float = 0.0
    bytes_in: int = 0
    bytes_out: int = 0
    kept: Kept = field(default_factory=Kept, repr=False)
    splits: int = 0
    adapters: int = 0
    adapted_weights: int = 0
    unmatched_keys: dict[str, None] = field(default_factory=dict)
    layout: str = ""
    cached: CachedRun = field(default_factory=uncached)
    schedule: tuple[float, ...] = ()
    _level: float | None = field(default=None, repr=False)

    def at(self, level: float) -> None:
        if level != self._level:
            self.steps += 1
            self._level = level

    def wear(self, worn: Worn) -> None:
        """Hooks change what the model wears from call to call; the most of it is told."""
        self.adapters = max(self.adapters, worn.adapters)
        self.adapted_weights = max(self.adapted_weights, worn.weights)
        self.unmatched_keys |= dict.fromkeys(worn.unmatched)
        self.seconds_loading += worn.seconds

    def report(self, peers: Peers, resident_bytes: int) -> Report:
        """The account at the end; the ranks of a group put theirs together."""
        cache = self.cached.report(peers)
        return Report(
            path="per_step",
            model=self.model,
            family=self.family,
            dtype=self.dtype,
            device=describe(self.device),
            world_size=peers.world,
            layout=self.layout,
            steps=self.steps,
            forwards=self.forwards,
            splits=self.splits,
            seconds=self.seconds,
            seconds_loading=self.seconds_loading,
            seconds_queued=self.seconds_queued,
            bytes_in=self.bytes_in,
            bytes_out=self.bytes_out,
            peak_bytes=peers.each(peak_bytes(self.device)),
            resident_bytes=resident_bytes,
            low_bit_layers=self.low_bit_layers,
            adapters=self.adapters,
            adapted_weights=self.adapted_weights,
            unmatched_keys=list(self.unmatched_keys),
            steps_reused=steps_reused(cache),
            cache=cache,
        )


class Accounts:
    """The open per-step runs by session and run; a session's end drops its own."""

    def __init__(self, caches: Caches) -> None:
        self._caches = caches
        self._open: dict[tuple[str, str], Account] = {}

    def open(self, session: str, request: Predict, model: Model) -> Account:
        """The account of a request's run. It holds no model, so that unloading one in the middle frees it.

        Raises InvalidRequestError for step cache settings that cannot be.
        """
        key = (session, request.run)
        account = self._open.get(key)
        if account is None:
            reset_peak(model.device)
            name, dtype, loop = request.model.name, dtype_name(model.dtype), _loop(request.schedule)
            cached = self._caches.open(request.cache, model, name, key, loop)
            account = Account(name, model.family, dtype, model.device, model.low_bit_layers)
            account.cached, account.schedule = cached, tuple(loop.sigmas)
            self._open[key] = account
        return account

    def close(self, session: str, run: str) -> Account | None:
        account = self._open.pop((session, run), None)
        if account is not None:
            account.cached.forget()
        return account

    def end_session(self, session: str) -> None:
        for key in [key for key in self._open if key[0] == session]:
            self.close(*key)


def _loop(schedule: Schedule | None) -> Loop:
    if schedule is None:
        return Loop("", {}, ())
    sigmas = from_wire(schedule.sigmas).float().reshape(-1).tolist()
    return Loop(schedule.sampler, schedule.sampler_options, sigmas, schedule.objection)


@dataclass(frozen=True, eq=False)
class PreparedCall:
    """One call of a run, all that it brought on the device."""

    rows: Rows
    adapters: str
    bytes_in: int


def prepare_call(request: Predict, model: Model, blobs: BlobStore, account: Account) -> PreparedCall:
    """What one call needs. Raises MissingBlobError, InvalidRequestError."""
    device = model.device
    x, timestep = from_wire(request.x), from_wire(request.timestep)
    conditioning = on_device(request.conditioning, blobs, device, account.kept)
    level = float(timestep.reshape(-1)[0]) if request.sigma is None else request.sigma
    account.at(level)
    call = _call(request, account, level)
    rows = Rows(x.to(device), timestep.to(device, torch.float32), conditioning, call)
    brought = request.x.nbytes + request.timestep.nbytes + wire_bytes(request.conditioning)
    return PreparedCall(rows, request.adapters, brought)


def predict(call: PreparedCall, model: Model, account: Account) -> tuple[torch.Tensor, float]:
    """The raw output for one call, on the host and in the dtype the model computed in, and its seconds."""
    began = time.perf_counter()
    account.cached.weights = call.adapters
    with ExitStack() as failed:
        # A run that failed or was taken back must leave nothing, should it go on after all.
        failed.callback(account.cached.forget)
        v = _evaluated(model, call.rows, account).cpu()
        failed.pop_all()
    seconds = time.perf_counter() - began
    account.seconds += seconds
    account.bytes_in += call.bytes_in
    account.bytes_out += v.nbytes
    return v, seconds


def _call(request: Predict, account: Account, level: float) -> Call:
    """Whose rows a request carries. Without a schedule, a step is a noise level that the run has seen."""
    rows, branches = request.x.shape[0], tuple(request.branches)
    if branches and rows % len(branches):
        raise InvalidRequestError(f"{rows} rows cannot be shared out among {len(branches)} conditionings.")
    step = step_at(account.schedule, level) if account.schedule else account.steps - 1
    return Call(branches, rows // max(len(branches), 1), step, level)


def _evaluated(model: Model, rows: Rows, account: Account) -> torch.Tensor:
    """v of all rows; once memory has not sufficed, of one branch after the other, to the end of the run."""
    alone = len(rows.call.branches) < 2
    if alone or not account.splits:
        try:
            v = evaluate(model, rows, account.cached)
        except OutOfMemoryError:
            if alone:
                raise
        else:
            account.forwards += 1
            return v
        account.splits += 1
        release_memory(model.device)
    parts = [evaluate(model, rows.branch(index), account.cached) for index in range(len(rows.call.branches))]
    account.forwards += len(parts)
    return torch.cat(parts)
