"""One weight of the file in the module's memory: changed in place, and put back as it was."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ..models.model import Model
from .atuse import AtUseStore
from .layout import FileWeight
from .patch import Patch
from .places import kept_layer
from .plain import PlainStore
from .requantised import RequantisedStore


class Store(Protocol):
    """Where a weight is kept."""

    def write(self, patches: Sequence[Patch]) -> int:
        """Make the weight its base with `patches`, in order; returns the bytes written. May break off."""

    def restore(self) -> int:
        """Make the weight its base, to the bit, and forget what was kept; returns the bytes written."""


def store_of(model: Model, weight: FileWeight) -> Store:
    """The store of `weight`, by the form it has in memory."""
    read = weight.reads[0]
    # Blocks, and plain fp8 that was not asked for: ComfyUI changes their values, and rounds no result.
    if read.layer is not None and read.through is None and not read.layer.parts:
        kept = kept_layer(model.module, read) is not None
        return AtUseStore(model, weight) if kept else PlainStore(model, weight)
    if read.layer is not None or read.through is not None:
        return RequantisedStore(model, weight)
    return PlainStore(model, weight)
