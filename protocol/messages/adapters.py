"""What a request may have done to its model's weights: LoRAs and their kin, as data."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, InstanceOf

from ..values import Blob
from .base import Digest, Identifier, Record, Tensor
from .common import RelativeName

Kind = Literal["lora", "loha", "lokr", "glora", "oft", "boft", "diff", "set"]


def _offset(value: list[int]) -> list[int]:
    dim, start, length = value
    if dim < 0 or start < 0 or length < 1:
        raise ValueError("an offset is a dimension, a start from 0 and a length of at least 1")
    return value


Offset = Annotated[list[int], Field(min_length=3, max_length=3), AfterValidator(_offset)]


class WeightPatch(Record):
    """One weight changed: `strength_model` times what it is, and `strength` times what `kind` makes of
    `tensors`. SPEC.md names the tensors of each kind.
    """

    kind: Kind
    key: str = Field(min_length=1, max_length=1024)
    tensors: dict[Identifier, Tensor | InstanceOf[Blob]] = Field(max_length=16)
    strength: float
    strength_model: float = 1.0
    alpha: float | None = None
    offset: Offset | None = None
    bypass: bool = False


class LoraFile(Record):
    """A LoRA that the engine reads itself: its name under a root, its size and its header's digest."""

    kind: Literal["file"] = "file"
    folder: Literal["loras"] = "loras"
    name: RelativeName
    size: int = Field(ge=0)
    digest: Digest
    strength: float


Adapter = Annotated[WeightPatch | LoraFile, Field(discriminator="kind")]
