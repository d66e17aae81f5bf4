"""The report of a whole loop: what was asked, what it took, and what the rank held."""

from __future__ import annotations

from collections.abc import Sequence

from ...protocol.messages.client import Run
from ...protocol.messages.common import Report
from ..models.model import Model
from .cache_report import steps_reused
from .conditioning import wire_bytes
from .device import describe
from .dtype import dtype_name
from .guidance import branches_of
from .run import Outcome
from .wardrobe import Worn


def run_report(
    run: Run,
    model: Model,
    outcome: Outcome,
    worn: Worn,
    *,
    layout: str,
    peaks: Sequence[int],
    seconds_loading: float,
    seconds_queued: float,
    resident_bytes: int,
) -> Report:
    """Bytes are those of tensors, blobs not counted: they came with their own messages."""
    return Report(
        path="whole_loop",
        model=run.model.name,
        family=model.family,
        dtype=dtype_name(model.dtype),
        device=describe(model.device),
        sampler=run.sampler,
        world_size=len(peaks),
        layout=layout,
        steps=outcome.steps,
        forwards=outcome.forwards,
        splits=outcome.splits,
        seconds=outcome.seconds,
        seconds_loading=seconds_loading,
        seconds_queued=seconds_queued,
        bytes_in=_bytes_in(run),
        bytes_out=outcome.bytes_out,
        peak_bytes=list(peaks),
        resident_bytes=resident_bytes,
        low_bit_layers=model.low_bit_layers,
        adapters=worn.adapters,
        adapted_weights=worn.weights,
        unmatched_keys=list(worn.unmatched),
        steps_reused=steps_reused(outcome.cache),
        cache=outcome.cache,
    )


def _bytes_in(run: Run) -> int:
    branches = list(branches_of(run))
    conditionings = [branch.conditioning for branch in branches]
    masks = [branch.region.mask for branch in branches if branch.region]
    mask = run.mask.mask if run.mask else None
    return wire_bytes([run.sigmas, run.noise, run.latent, mask, conditionings, masks])
