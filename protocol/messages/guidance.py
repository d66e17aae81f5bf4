"""How a run combines its conditionings into one prediction, as data: guidance, and changes to it."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from .base import Record, Tensor
from .common import Branch


class Cfg(Record):
    """negative + scale * (positive - negative)."""

    kind: Literal["cfg"] = "cfg"
    scale: float = 1.0


class DualCfg(Record):
    """Two scales over three sides: from `middle` to the positive, and from the negative to `middle`."""

    kind: Literal["dual_cfg"] = "dual_cfg"
    scale: float
    negative_scale: float
    nested: bool = False
    middle: list[Branch] | None = None


class PerpNeg(Record):
    """Guidance by the part of the negative that is perpendicular to the positive, both seen from `empty`."""

    kind: Literal["perp_neg"] = "perp_neg"
    scale: float
    negative_scale: float
    empty: list[Branch] | None = None


Guidance = Annotated[Cfg | DualCfg | PerpNeg, Field(discriminator="kind")]


class CfgOverride(Record):
    """Another scale from sigma `start` down to `end`, both included; of several, the last counts."""

    kind: Literal["cfg_override"] = "cfg_override"
    scale: float
    start: float
    end: float


class Momentum(Record):
    """What `Apg` remembers: the running guidance, and the sigma it was last asked at."""

    average: Tensor | None = None
    sigma: float | None = None


class Apg(Record):
    """Before the combination: guidance with momentum, shortened, its part along the positive scaled."""

    kind: Literal["apg"] = "apg"
    eta: float
    norm_threshold: float
    momentum: float
    state: Momentum = Momentum()


class Tcfg(Record):
    """Before the combination: the negative without what leads away from the positive."""

    kind: Literal["tcfg"] = "tcfg"


class Fresca(Record):
    """Before the combination: the guidance's low and high frequencies scaled apart."""

    kind: Literal["fresca"] = "fresca"
    scale_low: float
    scale_high: float
    cutoff: int


class RescaleCfg(Record):
    """In place of the combination: plain guidance brought to the spread of the positive, by `multiplier`."""

    kind: Literal["rescale_cfg"] = "rescale_cfg"
    multiplier: float


class NormCfg(Record):
    """In place of the combination: plain guidance, each pixel brought to the positive's length there."""

    kind: Literal["norm_cfg"] = "norm_cfg"
    strength: float


class RenormCfg(Record):
    """In place of the combination: guidance below sigma `truncation`, its length limited to `limit` times."""

    kind: Literal["renorm_cfg"] = "renorm_cfg"
    truncation: float
    limit: float
    channels: int = Field(ge=0)


class VideoCfg(Record):
    """In place of the combination: a scale for each row, from `min_scale` up, or up and down again."""

    kind: Literal["video_cfg"] = "video_cfg"
    min_scale: float
    shape: Literal["linear", "triangle"]


class PerpNegCfg(Record):
    """In place of the combination: `PerpNeg` with the run's own positive and negative."""

    kind: Literal["perp_neg_cfg"] = "perp_neg_cfg"
    negative_scale: float
    empty: list[Branch]


class CfgNorm(Record):
    """After the combination: no pixel longer than the positive has it, all of them scaled by `strength`."""

    kind: Literal["cfg_norm"] = "cfg_norm"
    strength: float


class CfgZeroStar(Record):
    """After the combination: the negative weighed by how much of it the positive holds."""

    kind: Literal["cfg_zero_star"] = "cfg_zero_star"


class Mahiro(Record):
    """After the combination: the more leaning to the scaled positive, the less the two agree."""

    kind: Literal["mahiro"] = "mahiro"


class EpsilonScaling(Record):
    """After the combination: the predicted noise divided by `factor`."""

    kind: Literal["epsilon_scaling"] = "epsilon_scaling"
    factor: float


class ScoreRescaling(Record):
    """After the combination: the score rescaled by the signal to noise ratio, towards `k`."""

    kind: Literal["score_rescaling"] = "score_rescaling"
    k: float
    variance: float


Before = Apg | Tcfg | Fresca
Combination = RescaleCfg | NormCfg | RenormCfg | VideoCfg | PerpNegCfg
After = CfgNorm | CfgZeroStar | Mahiro | EpsilonScaling | ScoreRescaling
Change = Annotated[CfgOverride | Before | Combination | After, Field(discriminator="kind")]
