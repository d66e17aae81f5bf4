"""What is done to one weight of a model: a low-rank product, a rotation, a difference or a new value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from ...protocol.errors import InvalidRequestError, UnsupportedRequestError

REQUIRED: Mapping[str, frozenset[str]] = {
    "lora": frozenset({"up", "down"}),
    "loha": frozenset({"w1_a", "w1_b", "w2_a", "w2_b"}),
    "lokr": frozenset(),
    "glora": frozenset({"a1", "a2", "b1", "b2"}),
    "oft": frozenset({"blocks"}),
    "boft": frozenset({"blocks"}),
    "diff": frozenset({"diff"}),
    "set": frozenset({"set"}),
}
OPTIONAL: Mapping[str, frozenset[str]] = {
    "lora": frozenset({"mid", "dora_scale", "reshape"}),
    "loha": frozenset({"t1", "t2", "dora_scale"}),
    "lokr": frozenset({"w1", "w1_a", "w1_b", "w2", "w2_a", "w2_b", "t2", "dora_scale"}),
    "glora": frozenset({"dora_scale"}),
    "oft": frozenset({"rescale", "dora_scale"}),
    "boft": frozenset({"rescale", "dora_scale"}),
    "diff": frozenset(),
    "set": frozenset(),
}
ADAPTERS = frozenset(REQUIRED) - {"diff", "set"}
"""Kinds that ComfyUI's bypass loaders add at the forward pass; the others are merged there too."""


@dataclass(frozen=True, eq=False)
class Patch:
    """One change of the weight `key`, spelled as ComfyUI's model has it, without `diffusion_model.`.

    kind and tensors (any float dtype; they must not change while the patch is in use):
        lora    up (out,r,...), down (r,in,...), mid (r,r,kh,kw), reshape (shape to pad to)
        loha    w1_a, w2_a (out,r), w1_b, w2_b (r,in), t1, t2 (r,r,kh,kw)
        lokr    w1 or w1_a @ w1_b, w2 or w2_a @ w2_b, t2; the weight is their Kronecker product
        glora   a1, a2, b1, b2
        oft     blocks (n,b,b), rescale
        boft    blocks (m,n,b,b), rescale
        diff    diff, of the weight's shape: added (ComfyUI's difference of weight or of bias)
        set     set, of the weight's shape: takes its place
    and dora_scale with any of the first six. `alpha` is the file's, None when it has none.

    strength multiplies the change, strength_model the weight before it. offset (dim, start, length) names the
    part of the weight that is meant. bypass: added to the layer's output instead, the weight left as it is.
    """

    key: str
    kind: str
    tensors: Mapping[str, torch.Tensor]
    strength: float
    strength_model: float = 1.0
    alpha: float | None = None
    offset: tuple[int, int, int] | None = None
    bypass: bool = False

    def __post_init__(self) -> None:
        """Raises UnsupportedRequestError for an unknown kind, InvalidRequestError for wrong tensors."""
        if self.kind not in REQUIRED:
            raise UnsupportedRequestError(
                f"Weight {self.key!r}: patches of kind {self.kind!r} are not known here.",
                hint=f"Known are {', '.join(REQUIRED)}. Remove the node that makes it.",
            )
        names = self.tensors.keys()
        missing = REQUIRED[self.kind] - names
        surplus = names - REQUIRED[self.kind] - OPTIONAL[self.kind]
        if self.kind == "lokr":
            missing |= {part for part in ("w1", "w2") if not ({part} <= names or _halves(part) <= names)}
        if missing or surplus:
            raise InvalidRequestError(
                f"Weight {self.key!r}: this {self.kind} patch lacks {sorted(missing)} "
                f"and has {sorted(surplus)} too many.",
                hint="The LoRA file is incomplete.",
            )

    def same_as(self, other: Patch) -> bool:
        """Whether both do the same, to the last bit."""
        return _settings(self) == _settings(other) and all(
            _equal(tensor, other.tensors[name]) for name, tensor in self.tensors.items()
        )


def _halves(part: str) -> frozenset[str]:
    return frozenset({f"{part}_a", f"{part}_b"})


def _settings(patch: Patch) -> tuple[object, ...]:
    return (
        patch.key,
        patch.kind,
        patch.tensors.keys(),
        patch.strength,
        patch.strength_model,
        patch.alpha,
        patch.offset,
        patch.bypass,
    )


def _equal(one: torch.Tensor, two: torch.Tensor) -> bool:
    return one is two or (one.dtype == two.dtype and one.device == two.device and torch.equal(one, two))
