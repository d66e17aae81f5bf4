"""From the tensors of a LoRA file to patches: which names make up an adapter, and which one counts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

import torch

from .names import FULL, WEIGHT, Spot
from .patch import Patch
from .swap import swapped_halves
from .tensors import LoraTensors

Found = Mapping[str, torch.Tensor]
#: Ends of the names of `up`, `down` and, if there can be one, `mid`; the first that is there counts.
LOW_RANK = (
    (".lora_up.weight", ".lora_down.weight", ".lora_mid.weight"),
    ("_lora.up.weight", "_lora.down.weight", None),
    (".lora_B.weight", ".lora_A.weight", None),
    (".lora.up.weight", ".lora.down.weight", None),
    (".lora_B", ".lora_A", None),
    (".lora_linear_layer.up.weight", ".lora_linear_layer.down.weight", None),
    (".lora_B.default.weight", ".lora_A.default.weight", None),
)


def collect(names: Mapping[str, Spot], tensors: LoraTensors) -> list[Patch]:
    """All patches, at strength 1, that `tensors` hold for the weights of `names`.

    Of several for one spot the last counts, as in ComfyUI.
    """
    patches: dict[Spot, Patch] = {}
    for name, spot in names.items():
        bias = _bias_of(spot)
        known = bias if bias and FULL + bias.key in names else None
        for place, patch in _patches(name, spot, known, tensors):
            patches[place] = swapped_halves(patch) if place.swapped else patch
    return list(patches.values())


def _bias_of(spot: Spot) -> Spot | None:
    """ComfyUI leaves out a bias that a name for some rows brings along, and that of what is no weight."""
    if spot.offset is not None or spot.swapped or not spot.key.endswith(WEIGHT):
        return None
    return Spot(spot.key.removesuffix(WEIGHT) + ".bias")


def _patches(name: str, spot: Spot, bias: Spot | None, tensors: LoraTensors) -> Iterator[tuple[Spot, Patch]]:
    alpha = float(tensors.take(f"{name}.alpha").item()) if f"{name}.alpha" in tensors else None
    dora = _some(tensors, name, {"dora_scale": "dora_scale"})
    for kind, find in ADAPTERS.items():
        found = find(name, tensors)
        if found:
            yield spot, Patch(spot.key, kind, {**found, **dora}, 1.0, alpha=alpha, offset=spot.offset)
    plain = Patch(spot.key, "diff", {"diff": torch.empty(0)}, 1.0, offset=spot.offset)
    if f"{name}.w_norm" in tensors:
        yield spot, _difference(plain, tensors.take(f"{name}.w_norm"))
        if bias and f"{name}.b_norm" in tensors:
            yield bias, _difference(replace(plain, key=bias.key), tensors.take(f"{name}.b_norm"))
    if f"{name}.diff" in tensors:
        yield spot, _difference(plain, tensors.take(f"{name}.diff"))
    if bias and f"{name}.diff_b" in tensors:
        yield bias, _difference(replace(plain, key=bias.key), tensors.take(f"{name}.diff_b"))
    if f"{name}.set_weight" in tensors:
        yield spot, replace(plain, kind="set", tensors={"set": tensors.take(f"{name}.set_weight")})


def _difference(plain: Patch, tensor: torch.Tensor) -> Patch:
    return replace(plain, tensors={"diff": tensor})


def _some(tensors: LoraTensors, name: str, parts: Mapping[str, str]) -> dict[str, torch.Tensor]:
    """Those of `parts` (ours -> theirs) that the file has."""
    return {
        ours: tensors.take(f"{name}.{theirs}")
        for ours, theirs in parts.items()
        if f"{name}.{theirs}" in tensors
    }


def _lora(name: str, tensors: LoraTensors) -> Found:
    for up, down, mid in LOW_RANK:
        if name + up in tensors:
            found = {"up": tensors.take(name + up), "down": tensors.take(name + down)}
            if mid and name + mid in tensors:
                found["mid"] = tensors.take(name + mid)
            return found | _some(tensors, name, {"reshape": "reshape_weight"})
    return {}


def _loha(name: str, tensors: LoraTensors) -> Found:
    if f"{name}.hada_w1_a" not in tensors:
        return {}
    parts = [f"w{number}_{half}" for number in (1, 2) for half in "ab"]
    if f"{name}.hada_t1" in tensors:
        parts += ["t1", "t2"]
    return {part: tensors.take(f"{name}.hada_{part}") for part in parts}


def _lokr(name: str, tensors: LoraTensors) -> Found:
    parts = ("w1", "w2", "w1_a", "w1_b", "w2_a", "w2_b", "t2")
    found = _some(tensors, name, {part: f"lokr_{part}" for part in parts})
    return found if found.keys() & {"w1", "w2", "w1_a", "w2_a"} else {}


def _glora(name: str, tensors: LoraTensors) -> Found:
    if f"{name}.a1.weight" not in tensors:
        return {}
    return {part: tensors.take(f"{name}.{part}.weight") for part in ("a1", "a2", "b1", "b2")}


def _rotation(dims: int) -> Callable[[str, LoraTensors], Found]:
    def find(name: str, tensors: LoraTensors) -> Found:
        if f"{name}.oft_blocks" not in tensors or tensors.take(f"{name}.oft_blocks").ndim != dims:
            return {}
        return _some(tensors, name, {"blocks": "oft_blocks", "rescale": "rescale"})

    return find


ADAPTERS: Mapping[str, Callable[[str, LoraTensors], Found]] = {
    "lora": _lora,
    "loha": _loha,
    "lokr": _lokr,
    "glora": _glora,
    "oft": _rotation(3),
    "boft": _rotation(4),
}
"""By kind; where a name has tensors of several, the last counts."""
