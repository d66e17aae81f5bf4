"""CFG-parallel: the rows of one call, such as cond and uncond, are computed by different ranks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from .collectives import gather, shares
from .mesh import Mesh


class Rows:
    """Which rows of a call this rank computes; a call of fewer rows than ranks is computed by all of them."""

    def __init__(self, count: int, mesh: Mesh) -> None:
        self.count = count
        self.mesh = mesh
        self.sizes = shares(count, mesh.layout.cfg)
        self.first = sum(self.sizes[: mesh.place("cfg")])
        self.size = self.sizes[mesh.place("cfg")]

    @property
    def are_shared(self) -> bool:
        return self.mesh.layout.cfg > 1 and self.count >= self.mesh.layout.cfg

    def of(self, value: Any) -> Any:
        """Its rows of each tensor that has one per row of the call; what all rows share, as it is."""
        if isinstance(value, torch.Tensor):
            whole = value.ndim == 0 or value.shape[0] != self.count
            return value if whole else value[self.first : self.first + self.size]
        if isinstance(value, list | tuple):
            return [self.of(item) for item in value]
        if isinstance(value, Mapping):
            return {key: self.of(item) for key, item in value.items()}
        return value

    def all(self, result: torch.Tensor) -> torch.Tensor:
        """The results of all rows, on every rank."""
        return gather(result, self.sizes, 0, self.mesh.group("cfg"))
