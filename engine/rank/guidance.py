"""From a Run message to guidance on the device: its conditionings, what changes them, and what is kept."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ...protocol.errors import InvalidRequestError
from ...protocol.messages import common
from ...protocol.messages.base import Record
from ...protocol.messages.client import Run
from ...protocol.messages.guidance import DualCfg, Momentum, PerpNeg, PerpNegCfg
from ...protocol.torch import to_wire
from ..models.model import Model
from ..sampling.branch import Area, Branch, Side, fits_rows
from ..sampling.changes.before import AdaptiveProjection
from ..sampling.changes.combine import combine_of, perp_neg_cfg
from ..sampling.changes.moment import Combine
from ..sampling.changes.order import Changes, changes_of
from ..sampling.conditioning import repeat_rows
from ..sampling.flow import Flow
from ..sampling.guidance import Guide, Sides
from ..sampling.predictor import Predictor
from .blobs import BlobStore
from .conditioning import on_device, own_tensor


def branches_of(run: Run) -> Iterator[common.Branch]:
    """Every conditioning of `run`, whatever it is for."""
    yield from run.positive
    yield from run.negative or ()
    yield from _third(run) or ()
    for change in run.changes:
        yield from change.empty if isinstance(change, PerpNegCfg) else ()


def guide_of(
    run: Run, model: Model, blobs: BlobStore, shape: Sequence[int], predictor: Predictor, flow: Flow
) -> Guide:
    """Everything that guidance needs, for a latent of `shape` [B, C, ...].

    Raises MissingBlobError naming all that lack, InvalidRequestError for what does not fit the latent.
    """
    placed = _placed(run, blobs, model.device)
    build = partial(_branch, placed=placed, shape=shape, device=model.device)

    def side(given: Sequence[common.Branch] | None) -> Side | None:
        return None if given is None else tuple(map(build, given))

    return Guide(
        predictor,
        Sides(side(run.positive) or (), side(run.negative), side(_third(run))),
        run.guidance,
        flow,
        _changes(run, side, shape, model.device),
        skip_at_one=run.cfg1_optimization,
    )


def momenta_of(changes: Changes) -> list[Momentum]:
    """What the changes of a run remember at its end, in their order."""
    return [_momentum(projection) for projection in changes.projections]


def _third(run: Run) -> list[common.Branch] | None:
    if isinstance(run.guidance, DualCfg):
        return run.guidance.middle
    return run.guidance.empty if isinstance(run.guidance, PerpNeg) else None


def _placed(run: Run, blobs: BlobStore, device: torch.device) -> dict[str, Any]:
    """The conditionings by branch id; two branches of one id would share what is remembered for them."""
    given = list(branches_of(run))
    trees = {branch.id: branch.conditioning for branch in given}
    if len(trees) < len(given):
        raise InvalidRequestError("Two conditionings of the run have the same id.")
    found: dict[str, Any] = on_device(trees, blobs, device)
    return found


def _branch(
    branch: common.Branch, *, placed: dict[str, Any], shape: Sequence[int], device: torch.device
) -> Branch:
    box = branch.area
    area = Area(tuple(box.size), tuple(box.offset)) if box else None
    _Fit(branch.id, tuple(shape[2:])).check(area, branch.fallback)
    return Branch(
        branch.id,
        repeat_rows(placed[branch.id], shape[0]),
        float(branch.strength),
        area,
        _mask(branch, shape, device) if branch.region else None,
        branch.start,
        branch.end,
        branch.fallback,
    )


@dataclass(frozen=True)
class _Fit:
    """Refuses what does not lie within a latent of `size`, by the branch's id."""

    id: str
    size: tuple[int, ...]

    def check(self, area: Area | None, fallback: bool) -> None:
        if area is None:
            return
        if fallback:
            raise InvalidRequestError(
                f"Conditioning {self.id} fills what others leave; it cannot have an area."
            )
        if not len(area.size) == len(area.offset) == len(self.size):
            raise InvalidRequestError(
                f"Conditioning {self.id} has an area of other dimensions than the latent."
            )
        ends = [size + offset for size, offset in zip(area.size, area.offset, strict=True)]
        if any(end > length for end, length in zip(ends, self.size, strict=True)):
            raise InvalidRequestError(
                f"Conditioning {self.id} has an area up to {ends}, outside a latent of {list(self.size)}."
            )


def _mask(branch: common.Branch, shape: Sequence[int], device: torch.device) -> Tensor:
    assert branch.region is not None
    mask = own_tensor(branch.region.mask, device)
    size = tuple(shape[2:])
    alike = mask.ndim == len(size) + 1 and len(mask) > 0
    if not alike or any(have not in (1, want) for have, want in zip(mask.shape[1:], size, strict=True)):
        raise InvalidRequestError(
            f"The mask {list(mask.shape)} of conditioning {branch.id} does not fit a latent of {list(size)}."
        )
    spread = mask.expand(mask.shape[0], *size)[:, None]
    return fits_rows(spread, shape[0]) * branch.region.strength


def _changes(
    run: Run,
    side: Callable[[Sequence[common.Branch] | None], Side | None],
    shape: Sequence[int],
    device: torch.device,
) -> Changes:
    def combine(change: Record) -> Combine | None:
        if isinstance(change, PerpNegCfg):
            return partial(perp_neg_cfg, side(change.empty) or (), change.negative_scale)
        return combine_of(change)

    changes = changes_of(run.changes, combine)
    for projection in changes.projections:
        _remember(projection, shape, device)
    return changes


def _remember(projection: AdaptiveProjection, shape: Sequence[int], device: torch.device) -> None:
    wire = projection.change.state.average
    if wire is None:
        return
    average = own_tensor(wire, device)
    if tuple(average.shape) != tuple(shape):
        raise InvalidRequestError(
            f"The run goes on from a running average of {list(average.shape)}; its latent has {list(shape)}."
        )
    projection.average = average


def _momentum(projection: AdaptiveProjection) -> Momentum:
    average, sigma = projection.average, projection.sigma
    return Momentum(
        average=None if average is None else to_wire(average.cpu()),
        sigma=None if sigma is None else float(sigma),
    )
