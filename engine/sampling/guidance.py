"""Guidance: which conditionings a step predicts with, and how their predictions become one."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ...protocol.errors import InvalidRequestError
from ...protocol.messages.guidance import Cfg, DualCfg, Guidance, PerpNeg
from .branch import Branch, Side
from .call import Forward
from .changes.combine import perpendicular
from .changes.moment import Moment
from .changes.order import Changes
from .conditioning import Conditioning, repeat_rows
from .flow import Flow
from .predictor import Predictor

POSITIVE, NEGATIVE = "positive", "negative"

Pair = tuple[Tensor | None, Tensor | None]
"""What the positive and the negative predicted, None for one that was not asked."""


@dataclass(frozen=True, eq=False)
class Sides:
    """The conditionings of a run by what they are for; `third` is the middle, or the empty, of a guidance."""

    positive: Side
    negative: Side | None = None
    third: Side | None = None


@dataclass(frozen=True, eq=False)
class Guide:
    """Everything that guidance needs at every step.

    skip_at_one: leave a side out whose scale makes no difference, which changes may see.
    """

    predictor: Predictor
    sides: Sides
    guidance: Guidance
    flow: Flow
    changes: Changes = field(default_factory=Changes)
    skip_at_one: bool = True

    def skips(self, scale: float, idle: float = 1.0) -> bool:
        return self.skip_at_one and math.isclose(scale, idle)

    def moment(self, x: Tensor, sigma: Tensor, scale: float, pair: Pair) -> Moment:
        positive, negative = pair
        return Moment(
            x,
            sigma,
            scale,
            _or_zeros(positive, x),
            _or_zeros(negative, x),
            self.flow,
            lambda side: _or_zeros(self.predictor(x, sigma, [side])[0], x),
            positive is not None and negative is not None,
        )


class GuidedDenoiser:
    """The denoiser of one run: x0 of `x` [B, C, ...] at a sigma that all rows share."""

    def __init__(self, guide: Guide) -> None:
        _check(guide)
        self._guide = guide
        self._function = KINDS[type(guide.guidance)]

    @property
    def forwards(self) -> int:
        """Calls of the network so far."""
        return self._guide.predictor.forwards

    @property
    def splits(self) -> int:
        """How often memory did not suffice for a call, which was then made in parts."""
        return self._guide.predictor.splits

    def __call__(self, x: Tensor, sigma: Tensor) -> Tensor:
        """Return the guided x0 of `x`; `sigma` [1] is the level of all rows."""
        return self._function(self._guide, self._guide.guidance, x, sigma.reshape(-1)[0])


def cfg(guide: Guide, guidance: Cfg, x: Tensor, sigma: Tensor) -> Tensor:
    """Return negative + (positive - negative) * scale, changed as the run says."""
    scale = guide.changes.scale(sigma, guidance.scale)
    negative = None if guide.skips(scale) else guide.sides.negative
    positive, away = guide.predictor(x, sigma, [guide.sides.positive, negative])
    if away is None and guide.changes.none:
        assert positive is not None
        return positive
    moment = guide.moment(x, sigma, scale, (positive, away))
    return guide.changes.combined(guide.changes.prepared(moment))


def dual_cfg(guide: Guide, guidance: DualCfg, x: Tensor, sigma: Tensor) -> Tensor:
    """Return the positive's guidance over a middle, and the middle's over the negative (arXiv:2211.09800).

    Nested, the negative guides the outcome of the other two; else the two differences are added.
    """
    scale, outer = guidance.scale, guidance.negative_scale
    sides = guide.sides
    if guidance.nested:
        negative, middle, positive = guide.predictor(x, sigma, [sides.negative, sides.third, sides.positive])
        inner = guide.changes.combined(guide.moment(x, sigma, scale, (positive, middle)))
        away = _or_zeros(negative, x)
        return away + outer * (inner - away)
    no_negative = guide.skips(outer)
    no_middle = no_negative and guide.skips(scale)
    asked = [None if no_negative else sides.negative, None if no_middle else sides.third, sides.positive]
    negative, middle, positive = guide.predictor(x, sigma, asked)
    moment = guide.moment(x, sigma, outer, (middle, negative))
    return guide.changes.combined(moment) + (_or_zeros(positive, x) - moment.positive) * scale


def perp_neg(guide: Guide, guidance: PerpNeg, x: Tensor, sigma: Tensor) -> Tensor:
    """Return `perpendicular` guidance over an empty conditioning."""
    scale, negative_scale = guide.changes.scale(sigma, guidance.scale), guidance.negative_scale
    no_negative = guide.skips(negative_scale, idle=0.0)
    no_empty = no_negative and guide.skips(scale)
    sides = guide.sides
    asked = [sides.positive, None if no_negative else sides.negative, None if no_empty else sides.third]
    positive, negative, empty = guide.predictor(x, sigma, asked)
    moment = guide.changes.prepared(guide.moment(x, sigma, scale, (positive, negative)))
    x0 = perpendicular(moment.positive, moment.negative, _or_zeros(empty, x), scale, negative_scale)
    return guide.changes.finished(moment, x0)


KINDS: Mapping[type[Any], Callable[[Guide, Any, Tensor, Tensor], Tensor]] = {
    Cfg: cfg,
    DualCfg: dual_cfg,
    PerpNeg: perp_neg,
}


def cfg_denoiser(
    forward: Forward,
    positive: Conditioning,
    negative: Conditioning | None,
    *,
    cfg: float,
    rows: int,
    disable_cfg1_optimization: bool = False,
    batched: bool = True,
) -> GuidedDenoiser:
    """Return the denoiser of the plain case: one conditioning on each side, for a latent of `rows` rows.

    Raises `InvalidRequestError` when guidance needs a negative and there is none.
    """
    both = [
        None if conditioning is None else (Branch(name, repeat_rows(conditioning, rows)),)
        for name, conditioning in ((POSITIVE, positive), (NEGATIVE, negative))
    ]
    return GuidedDenoiser(
        Guide(
            Predictor(forward, batched=batched),
            Sides(both[0] or (), both[1]),
            Cfg(scale=cfg),
            Flow(1.0),
            skip_at_one=not disable_cfg1_optimization,
        )
    )


def _check(guide: Guide) -> None:
    changes = guide.changes
    unread = {DualCfg: bool(changes.before or changes.overrides), PerpNeg: changes.combine is not None}
    if unread.get(type(guide.guidance), False):
        raise InvalidRequestError(
            f"Guidance {guide.guidance.kind!r} does not look at some of the run's changes.",
            hint="Leave them out: ComfyUI's guider has no use for them.",
        )
    if not isinstance(guide.guidance, Cfg) or guide.sides.negative is not None:
        return
    for scale in (guide.guidance.scale, *(change.scale for change in changes.overrides)):
        if not math.isclose(scale, 1.0):
            raise InvalidRequestError(
                f"A cfg of {scale:g} needs a negative conditioning, and the request has none.",
                hint="Connect a negative conditioning, or set cfg to 1.",
            )


def _or_zeros(x0: Tensor | None, x: Tensor) -> Tensor:
    return torch.zeros_like(x) if x0 is None else x0
