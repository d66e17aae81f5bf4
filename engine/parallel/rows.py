"""CFG-parallel: the rows of one call, such as cond and uncond, are computed by different ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from .collectives import gather, shares
from .mesh import Mesh

Row = TypeVar("Row")


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

    def mine(self, rows: Sequence[Row]) -> Sequence[Row]:
        """This rank's of something that there is one of for each row."""
        return rows[self.first : self.first + self.size] if self.are_shared else rows

    def the_first(self, result: torch.Tensor) -> torch.Tensor:
        """The first rank's result of rows that all have computed: ranks that differ in a bit would part."""
        if self.mesh.layout.cfg > 1:
            group = self.mesh.group("cfg")
            result = result.contiguous()
            dist.broadcast(result, dist.get_global_rank(group, 0), group=group)
        return result

    def all(self, result: torch.Tensor) -> torch.Tensor:
        """The results of all rows, on every rank."""
        return gather(result, self.sizes, 0, self.mesh.group("cfg"))
