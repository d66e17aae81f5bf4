"""Which conditionings a guider predicts with, and how it combines them; or why it is not known."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import comfy.samplers

from ..protocol.messages.guidance import Cfg
from .fingerprint import fingerprint

#: Class -> its module, and its `predict_noise` with the helpers it calls, by digest.
GUIDERS: Mapping[str, tuple[str, tuple[str, ...], str]] = {
    "Guider_DualCFG": ("nodes_custom_sampler", (), "3e09c538469f3eb4"),
    "Guider_PerpNeg": ("nodes_perpneg", ("perp_neg",), "0abccbea37c7c5a8"),
}
BASIC = ("Guider_Basic", "nodes_custom_sampler")

Conds = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, eq=False)
class Asked:
    """The conds that a run may ask for; None for a side that is never asked, or that does not exist.

    `third` is DualCFGGuider's middle or PerpNegGuider's empty; lacking: a side that is asked and not there.
    """

    positive: Conds
    negative: Conds | None = None
    third: Conds | None = None
    lacking: str = ""

    @property
    def sides(self) -> dict[str, Conds]:
        every = {"positive": self.positive, "negative": self.negative, "third": self.third}
        return {name: conds for name, conds in every.items() if conds is not None}


def kind_of(guider: Any) -> str:
    """`cfg`, `dual_cfg` or `perp_neg`; "" for a guider that does something else."""
    kind = type(guider)
    if vars(guider).keys() & {"predict_noise", "outer_predict_noise"}:
        return ""
    name, module = BASIC
    if kind is comfy.samplers.CFGGuider or (kind.__name__ == name and kind.__module__.endswith(module)):
        return "cfg"
    if kind.__name__ not in GUIDERS or not _is_stock(kind):
        return ""
    return "dual_cfg" if kind.__name__ == "Guider_DualCFG" else "perp_neg"


def asked(guider: Any, scales: Sequence[float], skip_at_one: bool) -> Asked:
    """What `guider` may ask for, with every guidance scale that may hold in the run."""
    conds, kind = guider.conds, kind_of(guider)

    def idle(*values: float, at: float = 1.0) -> bool:
        return skip_at_one and all(math.isclose(value, at) for value in values)

    positive, negative = conds["positive"], conds.get("negative")
    if kind == "dual_cfg":
        no_negative = not guider.nested and idle(guider.cfg2)
        no_middle = no_negative and idle(guider.cfg1)
        return Asked(positive, None if no_negative else negative, None if no_middle else conds["middle"])
    if kind == "perp_neg":
        no_negative = idle(guider.neg_scale, at=0.0)
        no_empty = no_negative and idle(*scales)
        empty = conds["empty_negative_prompt"]
        return Asked(positive, None if no_negative else negative, None if no_empty else empty)
    if idle(*scales):
        return Asked(positive)
    plain = all(math.isclose(scale, 1.0) for scale in scales)
    return Asked(positive, negative, lacking="" if negative is not None or plain else "negative")


def guidance_of(guider: Any, third: list[Any] | None) -> dict[str, Any]:
    """The guidance of a run as the record's fields; `third` is its third side as branches."""
    kind = kind_of(guider)
    if kind == "dual_cfg":
        scales = {"scale": float(guider.cfg1), "negative_scale": float(guider.cfg2)}
        return {"kind": kind, **scales, "nested": bool(guider.nested), "middle": third}
    if kind == "perp_neg":
        scales = {"scale": float(guider.cfg), "negative_scale": float(guider.neg_scale)}
        return {"kind": kind, **scales, "empty": third}
    return Cfg(scale=float(guider.cfg)).model_dump()


def _is_stock(kind: type[Any]) -> bool:
    module, helpers, digest = GUIDERS[kind.__name__]
    function = vars(kind).get("predict_noise")
    known = kind.__mro__[1] is comfy.samplers.CFGGuider and kind.__module__.endswith(module)
    if not known or "outer_predict_noise" in vars(kind) or function is None:
        return False
    return fingerprint(function, *(function.__globals__.get(name) for name in helpers)) == digest
