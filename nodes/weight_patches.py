"""ComfyUI's patches of weights as records for the engine: what each of its adapter classes holds, by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

import comfy.utils
import comfy.weight_adapter
import torch

from ..engine.lora.patch import Patch
from ..engine.lora.swap import swapped_halves
from ..protocol.errors import UnsupportedRequestError
from ..protocol.messages.adapters import Kind, WeightPatch
from ..protocol.values import Blob, WireTensor
from .named_tensors import NAMED
from .refusals import STOCK

PREFIX = "diffusion_model."
WEIGHT = ".weight"
ALPHA = "alpha"
#: The names of the `weights` of ComfyUI's adapters, in their order there.
SLOTS: Mapping[Kind, tuple[str, ...]] = {
    "lora": ("up", "down", ALPHA, "mid", "dora_scale", "reshape"),
    "loha": ("w1_a", "w1_b", ALPHA, "w2_a", "w2_b", "t1", "t2", "dora_scale"),
    "lokr": ("w1", "w2", ALPHA, "w1_a", "w1_b", "w2_a", "w2_b", "t2", "dora_scale"),
    "glora": ("a1", "a2", "b1", "b2", ALPHA, "dora_scale"),
    "oft": ("blocks", "rescale", ALPHA, "dora_scale"),
    "boft": ("blocks", "rescale", ALPHA, "dora_scale"),
}
MERGES = "ModelMerge nodes"
SCALES = "UNetSelfAttentionMultiply or a node like it"
LORAS = "a LoRA node"

#: One entry of `ModelPatcher.patches`: (strength, what, strength of the model, offset, function).
Entry = tuple[float, Any, float, Any, Any]
Tensors = dict[str, torch.Tensor]


def refuse(what: str, node: str) -> NoReturn:
    """Raise UnsupportedRequestError: `what` of a MODEL is no data, and the `node` that likely set it."""
    raise UnsupportedRequestError(f"{what}, set by {node}.", hint=STOCK)


class Records:
    """Collects records, and the tensors that they name."""

    def __init__(self) -> None:
        self.tensors: dict[str, WireTensor] = {}

    def of_entry(self, key: str, entry: Entry) -> WeightPatch | None:
        """The record of one entry for the weight `key`; None for one that changes nothing.

        Raises UnsupportedRequestError naming what is no data, or no adapter that this version knows.
        """
        if _is_idle(entry):
            return None
        strength, what, strength_model, offset, function = entry
        kind, tensors, alpha = _contents(key, what)
        if function is not None:
            tensors = _reordered(key, kind, tensors, function)
        return self._record(
            key,
            kind,
            tensors,
            strength=float(strength),
            strength_model=float(strength_model),
            alpha=alpha,
            offset=None if offset is None else [int(part) for part in offset],
        )

    def of_model(self, key: str, entry: Entry) -> WeightPatch:
        """A hook that draws a weight towards that of another model: w + strength * (other - base).

        Its record must come before all others of the weight, which then are added to the mixture.
        """
        strength, (_, (other, *_)), strength_model, offset, function = entry
        if strength_model != 1.0 or offset is not None or function is not None:
            refuse(
                f"The weight {key!r} is drawn towards another model's in a way of its own", "a custom node"
            )
        tensors = {"diff": _tensor(key, other)}
        return self._record(key, "diff", tensors, strength=float(strength), strength_model=1.0 - strength)

    def of_bypass(self, key: str, adapter: Any, strength: float) -> WeightPatch:
        """An adapter that is computed beside the layer with the weight `key`."""
        kind, tensors, alpha = _of_adapter(key, adapter)
        return self._record(key, kind, tensors, strength=float(strength), alpha=alpha, bypass=True)

    def _record(self, key: str, kind: Kind, tensors: Tensors, **fields: Any) -> WeightPatch:
        if not key.startswith(PREFIX):
            refuse(f"This MODEL patches {key!r}, which is no weight of its diffusion model", "a custom node")
        named: dict[str, WireTensor | Blob] = {}
        for name, tensor in tensors.items():
            blob, wire = NAMED.name(tensor)
            self.tensors[blob.digest] = wire
            named[name] = blob
        return WeightPatch(kind=kind, key=key.removeprefix(PREFIX), tensors=named, **fields)


def is_model(entry: Entry) -> bool:
    """Whether `entry` draws a weight towards another model's."""
    what = entry[1]
    return isinstance(what, tuple) and len(what) == 2 and what[0] == "model_as_lora"


def _is_idle(entry: Entry) -> bool:
    """Whether ComfyUI would compute the weight itself: nothing is added to all of it."""
    strength, what, strength_model, _, _ = entry
    replaced = isinstance(what, tuple) and len(what) == 2 and what[0] == "set"
    return strength == 0.0 and strength_model == 1.0 and not replaced


def _contents(key: str, what: Any) -> tuple[Kind, Tensors, float | None]:
    if isinstance(what, list):
        refuse(f"The weight {key!r} of this MODEL is merged with another model's", MERGES)
    if isinstance(what, comfy.weight_adapter.WeightAdapterBase):
        return _of_adapter(key, what)
    if not isinstance(what, tuple) or len(what) not in (1, 2):
        refuse(f"The weight {key!r} of this MODEL has a patch of the type {type(what).__name__}", LORAS)
    kind, given = ("diff", what) if len(what) == 1 else what
    if kind not in ("diff", "set"):
        refuse(f"The weight {key!r} of this MODEL has a patch of the kind {kind!r}", LORAS)
    if kind == "diff" and len(given) > 1 and given[1].get("pad_weight"):
        refuse(f"The weight {key!r} of this MODEL is made larger", LORAS)
    if given[0] is None:
        refuse(f"The weight {key!r} of this MODEL is scaled", SCALES)
    return kind, {kind: _tensor(key, given[0])}, None


def _of_adapter(key: str, adapter: Any) -> tuple[Kind, Tensors, float | None]:
    known = type(adapter) in comfy.weight_adapter.adapters and adapter.name in SLOTS
    if not known or len(adapter.weights) != len(SLOTS[adapter.name]):
        refuse(
            f"The weight {key!r} of this MODEL has an adapter of the class {type(adapter).__name__}", LORAS
        )
    values = dict(zip(SLOTS[adapter.name], adapter.weights, strict=True))
    alpha = values.pop(ALPHA)
    tensors = {name: _tensor(key, value) for name, value in values.items() if value is not None}
    return adapter.name, tensors, None if alpha is None else float(alpha)


def _tensor(key: str, value: Any) -> torch.Tensor:
    if isinstance(value, (list, tuple)):
        return torch.tensor(value, dtype=torch.int64)
    if not isinstance(value, torch.Tensor) or value.is_meta:
        refuse(f"The patch of the weight {key!r} of this MODEL has no tensor in it", MERGES)
    return value


def _reordered(key: str, kind: Kind, tensors: Tensors, function: Any) -> Tensors:
    """`tensors` of a change whose rows `function` reorders: diffusers has shift and scale the other way.

    Raises UnsupportedRequestError for another function, and for a kind whose rows cannot be moved.
    """
    if function is not comfy.utils.swap_scale_shift:
        name = getattr(function, "__qualname__", type(function).__name__)
        refuse(f"The {kind} patch of the weight {key!r} of this MODEL is altered by {name}", LORAS)
    return dict(swapped_halves(Patch(key, kind, tensors, 1.0)).tensors)
