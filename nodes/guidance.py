"""A guider with the changes that nodes made to it, as the data of a whole loop; or why it is not data."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import comfy.samplers
import torch

from ..protocol.errors import UnsupportedRequestError
from ..protocol.messages.base import Record
from ..protocol.messages.common import Branch
from ..protocol.messages.guidance import Momentum, PerpNegCfg
from ..protocol.torch import from_wire
from ..protocol.values import Tree
from . import conditioning, guiders
from .recognition import Found, find
from .stock_guidance import AFTER, BEFORE, COMBINE, TABLE, WRAPPER

PLACES = (BEFORE, COMBINE, AFTER)
#: What a guider never looks at, though a node may have set it.
UNREAD: Mapping[str, frozenset[str]] = {
    "cfg": frozenset(),
    "dual_cfg": frozenset({WRAPPER, BEFORE}),
    "perp_neg": frozenset({COMBINE}),
}
#: Keys of a cond that change more than the arguments of the DiT.
CODE_KEYS = ("control", "gligen", "hooks")

Intern = Callable[[dict[str, Tree]], dict[str, Tree]]


@dataclass(frozen=True, eq=False)
class Guided:
    """`guider` under the model `options` of one sampling, over `noise` [B, C, ...]."""

    guider: Any
    options: Mapping[str, Any]
    noise: torch.Tensor

    @property
    def skip_at_one(self) -> bool:
        return not self.options.get("disable_cfg1_optimization", False)

    @cached_property
    def kind(self) -> str:
        return guiders.kind_of(self.guider)

    @cached_property
    def changes(self) -> tuple[Found, ...]:
        """The known changes that the guider looks at, in the order in which ComfyUI makes them."""
        unread = UNREAD.get(self.kind, frozenset())
        found = [find(TABLE, function, place) for place, function in self._callables() if place not in unread]
        return tuple(change for change in found if change is not None)

    @cached_property
    def asked(self) -> guiders.Asked:
        overrides = [float(found.values["cfg"]) for found in self.changes if found.known.place == WRAPPER]
        return guiders.asked(self.guider, [float(self.guider.cfg), *overrides], self.skip_at_one)

    def unknown(self, places: tuple[str, ...] = PLACES) -> str:
        """The first of `places` that holds what no stock node put there; "" when none does."""
        for place, function in self._callables():
            if place in places and find(TABLE, function, place) is None:
                return place
        return ""

    def reason_against(self) -> str:
        """Why it must run in ComfyUI, as far as it is not `unknown`; "" when it can run as data."""
        if not self.kind:
            return f"guider {type(self.guider).__name__}"
        if self.asked.lacking:
            return f"guidance without a {self.asked.lacking} conditioning"
        if not self.asked.positive:
            return "0 positive conditionings"
        for found in self.changes:
            reason = found.known.limit(found.values, self.noise.shape) or self._limit(found)
            if reason:
                return reason
        for side, conds in self.asked.sides.items():
            reasons = [reason for cond in conds if (reason := self._cond(cond))]
            if reasons:
                return f"{reasons[0]} on the {side} conditioning"
            if len({cond["uuid"] for cond in conds}) < len(conds):
                return f"two {side} conditionings of one uuid"
        return ""

    def fields(self, extra: Mapping[str, Any], intern: Intern) -> dict[str, Any]:
        """The fields of a Run that say how it is guided; `extra` are arguments of every DiT call."""
        sides = {
            side: [self._branch(side, cond, extra, intern) for cond in conds]
            for side, conds in self.asked.sides.items()
        }
        return {
            "guidance": guiders.guidance_of(self.guider, sides.get("third")),
            "changes": [self._record(found, extra, intern) for found in self.changes],
            "cfg1_optimization": self.skip_at_one,
            "positive": sides["positive"],
            "negative": sides.get("negative"),
        }

    def keep(self, momenta: list[Momentum]) -> None:
        """Leave in the closures of APG what a run here would: the next run may go on from it."""
        keepers = [found for found in self.changes if _has_momentum(found)]
        for found, momentum in zip(keepers, momenta, strict=True):
            average, sigma, device = momentum.average, momentum.sigma, self.noise.device
            kept = 0 if average is None else from_wire(average).clone().to(device)
            found.cells["running_avg"].cell_contents = kept
            level = None if sigma is None else torch.tensor(sigma, device=device)
            found.cells["prev_sigma"].cell_contents = level

    def _callables(self) -> Iterator[tuple[str, Any]]:
        """Each callable with its place; wrappers without a key only, the others have owners of their own."""
        wrappers = (self.options.get("transformer_options") or {}).get("wrappers") or {}
        for function in (wrappers.get(WRAPPER) or {}).get(None) or ():
            yield WRAPPER, function
        for function in self.options.get(BEFORE) or ():
            yield BEFORE, function
        if self.options.get(COMBINE) is not None:
            yield COMBINE, self.options[COMBINE]
        for function in self.options.get(AFTER) or ():
            yield AFTER, function

    def _branch(self, side: str, cond: Mapping[str, Any], extra: Mapping[str, Any], intern: Intern) -> Branch:
        branch = conditioning.branch(side, cond, self.noise.shape, extra)
        return branch.model_copy(update={"conditioning": intern(branch.conditioning)})

    def _cond(self, cond: Mapping[str, Any]) -> str:
        for key in CODE_KEYS:
            if cond.get(key) is not None:
                return key
        try:
            area = conditioning.area_of(cond, self.noise.shape)
        except UnsupportedRequestError as error:
            return error.message
        if area is not None and "default" in cond:
            return "an area of its own for what fills the rest"
        mask = cond.get("mask")
        return "" if mask is None or self._fits(mask, area is not None) else f"a mask {list(mask.shape)}"

    def _fits(self, mask: torch.Tensor, cut: bool) -> bool:
        """Whether a mask covers the latent row by row; one that is cut must not be a single frame for all."""
        rows, size = self.noise.shape[0], self.noise.shape[2:]
        alike = mask.ndim == len(size) + 1 and rows % min(mask.shape[0], rows) == 0
        return alike and all(
            have == want or (have == 1 and not cut) for have, want in zip(mask.shape[1:], size, strict=True)
        )

    def _limit(self, found: Found) -> str:
        if found.known.change is not None:
            return ""
        conds = found.values["nocond"]
        keys = {key for cond in conds for key in (*CODE_KEYS, "area", "mask", "default") if key in cond}
        return f"{min(keys)} on PerpNeg's empty conditioning" if keys else ""

    def _record(self, found: Found, extra: Mapping[str, Any], intern: Intern) -> Record:
        if found.known.change is not None:
            return found.known.change(found.values)
        model, noise = self.guider.inner_model, self.noise
        # A list of its own: it is filled in place, and the node's is used again at the next run.
        processed = comfy.samplers.encode_model_conds(
            model.extra_conds, list(found.values["nocond"]), noise, noise.device, "negative"
        )
        empty = [self._branch("empty", cond, extra, intern) for cond in processed]
        return PerpNegCfg(negative_scale=float(found.values["neg_scale"]), empty=empty)


def _has_momentum(found: Found) -> bool:
    return found.known.node == "APG" and bool(found.values["momentum"])
