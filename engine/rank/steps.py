"""Per-step runs: the loop is in ComfyUI, one Predict per model call, and the engine keeps the account."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import torch

from ...protocol.errors import InvalidRequestError, OutOfMemoryError
from ...protocol.messages.client import Predict
from ...protocol.messages.common import Report
from ...protocol.torch import from_wire
from ..models.model import Model
from ..sampling.call import Call
from .blobs import BlobStore
from .conditioning import on_device, wire_bytes
from .device import describe, peak_bytes, release_memory, reset_peak
from .dtype import dtype_name
from .network import Rows, evaluate


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
    splits: int = 0
    _level: float | None = field(default=None, repr=False)

    def at(self, level: float) -> None:
        if level != self._level:
            self.steps += 1
            self._level = level

    def report(self, world_size: int, resident_bytes: int) -> Report:
        return Report(
            path="per_step",
            model=self.model,
            family=self.family,
            dtype=self.dtype,
            device=describe(self.device),
            world_size=world_size,
            steps=self.steps,
            forwards=self.forwards,
            splits=self.splits,
            seconds=self.seconds,
            seconds_loading=self.seconds_loading,
            seconds_queued=self.seconds_queued,
            bytes_in=self.bytes_in,
            bytes_out=self.bytes_out,
            peak_bytes=[peak_bytes(self.device)],
            resident_bytes=resident_bytes,
            low_bit_layers=self.low_bit_layers,
        )


class Accounts:
    """The open per-step runs by session and run; a session's end drops its own."""

    def __init__(self) -> None:
        self._open: dict[tuple[str, str], Account] = {}

    def open(self, session: str, run: str, name: str, model: Model) -> Account:
        """The account of a run. It holds no model, so that unloading one in the middle frees it."""
        account = self._open.get((session, run))
        if account is None:
            reset_peak(model.device)
            dtype = dtype_name(model.dtype)
            account = Account(name, model.family, dtype, model.device, model.low_bit_layers)
            self._open[session, run] = account
        return account

    def close(self, session: str, run: str) -> Account | None:
        return self._open.pop((session, run), None)

    def end_session(self, session: str) -> None:
        for key in [key for key in self._open if key[0] == session]:
            del self._open[key]


def predict(request: Predict, model: Model, blobs: BlobStore, account: Account) -> tuple[torch.Tensor, float]:
    """The raw output for one call, on the host and in the dtype the model computed in, and its seconds."""
    device = model.device
    x, timestep = from_wire(request.x), from_wire(request.timestep)
    conditioning = on_device(request.conditioning, blobs, device)
    began = time.perf_counter()
    level = float(timestep.reshape(-1)[0]) if request.sigma is None else request.sigma
    account.at(level)
    rows = Rows(
        x.to(device), timestep.to(device, torch.float32), conditioning, _call(request, account, level)
    )
    v = _evaluated(model, rows, account).cpu()
    seconds = time.perf_counter() - began
    account.seconds += seconds
    account.bytes_in += request.x.nbytes + request.timestep.nbytes + wire_bytes(request.conditioning)
    account.bytes_out += v.nbytes
    return v, seconds


def _call(request: Predict, account: Account, level: float) -> Call:
    """Whose rows a request carries; the step is the number of noise levels its run has seen before."""
    rows, branches = request.x.shape[0], tuple(request.branches)
    if branches and rows % len(branches):
        raise InvalidRequestError(f"{rows} rows cannot be shared out among {len(branches)} conditionings.")
    return Call(branches, rows // max(len(branches), 1), account.steps - 1, level)


def _evaluated(model: Model, rows: Rows, account: Account) -> torch.Tensor:
    """v of all rows; once memory has not sufficed, of one branch after the other, to the end of the run."""
    alone = len(rows.call.branches) < 2
    if alone or not account.splits:
        try:
            v = evaluate(model, rows)
        except OutOfMemoryError:
            if alone:
                raise
        else:
            account.forwards += 1
            return v
        account.splits += 1
        release_memory(model.device)
    parts = [evaluate(model, rows.branch(index)) for index in range(len(rows.call.branches))]
    account.forwards += len(parts)
    return torch.cat(parts)
