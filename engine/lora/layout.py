"""The weights of a model by their names in the file, and where in the module the rows of each one are."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import torch

from ...protocol.errors import InvalidRequestError
from ..models.family import Family, Shapes
from ..models.model import Model
from ..models.plan import Read, make_plan, state_shapes
from ..models.quant.linear import QuantLinear
from ..models.registry import Detected


@dataclass(frozen=True)
class FileWeight:
    """A tensor of the file, named as its family does; `reads` tie its rows to those of parameters."""

    key: str
    shape: tuple[int, ...]
    reads: tuple[Read, ...]


class Layout:
    """All weights of one model in its file's layout, ComfyUI's key space without `diffusion_model.`"""

    def __init__(self, family: Family, weights: Mapping[str, FileWeight]) -> None:
        self.family = family
        self.weights = weights

    def find(self, key: str) -> FileWeight:
        """The weight `key` in any of the spellings its family knows. Raises InvalidRequestError if none."""
        found = self.weights.get(self.family.canonical(key))
        if found is None:
            raise InvalidRequestError(
                f"This {self.family.title} has no weight {key!r} for a LoRA to change.",
                hint="The LoRA was made for another model. Remove it, or load the model it belongs to.",
            )
        return found


def layout_of(model: Model | Detected) -> Layout:
    """The layout of a loaded model, or of a file that has only been recognised."""
    if isinstance(model, Detected):
        shapes: Shapes = state_shapes(model.family.build(model.config))
        return _layout(model, make_plan(model, shapes), shapes)
    assert model.detected is not None, "a LoRA needs a model that was loaded from a file"
    return _layout(model.detected, model.plan, {read.target: _shape(model, read) for read in model.plan})


def _layout(detected: Detected, plan: Sequence[Read], shapes: Shapes) -> Layout:
    names = {stored: key for key, stored in detected.stored.items()}
    reads: dict[str, list[Read]] = defaultdict(list)
    for read in plan:
        reads[names[read.key]].append(read)
    weights = {key: FileWeight(key, _whole(parts, shapes), tuple(parts)) for key, parts in reads.items()}
    return Layout(detected.family, weights)


def _whole(reads: Sequence[Read], shapes: Shapes) -> tuple[int, ...]:
    shape = tuple(shapes[reads[0].target])
    return (max(read.first + read.rows for read in reads), *shape[1:]) if shape else ()


def _shape(model: Model, read: Read) -> tuple[int, ...]:
    module, _, name = read.target.rpartition(".")
    owner = model.module.get_submodule(module)
    if isinstance(owner, QuantLinear) and name == "weight":
        return owner.out_features, owner.in_features
    return tuple(cast(torch.Tensor, getattr(owner, name)).shape)
