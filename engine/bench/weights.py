"""Random weights under a family's published names, so that a benchmark needs no download."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch

from ..models.family import Config, Family
from ..models.plan import state_shapes

Shape = tuple[int, ...]


def published_shapes(family: Family, config: Config) -> dict[str, Shape]:
    """Names and shapes of the file that a model of `config` would be published as."""
    ours = state_shapes(family.build(config))
    shapes: dict[str, Shape] = {}
    for copy in family.key_map(ours):
        whole = tuple(ours[copy.target])
        rows = copy.source_rows[1] if copy.source_rows else next(iter(whole), 0)
        rows = max(rows, shapes.get(copy.source, (0,))[0])
        shapes[copy.source] = (rows, *whole[1:]) if whole else ()
    return shapes


def random_weights(shapes: Mapping[str, Shape], dtype: torch.dtype) -> Iterator[tuple[str, torch.Tensor]]:
    """Each tensor by its name: matrices that keep the size of what they multiply, norms of one."""
    generator = torch.Generator().manual_seed(0)
    for name, shape in shapes.items():
        if len(shape) == 1 and "norm" in name and not name.endswith("bias"):
            yield name, torch.ones(shape, dtype=dtype)
        else:
            spread = torch.Size(shape[1:]).numel() ** -0.5 if len(shape) > 1 else 0.02
            yield name, (torch.randn(shape, generator=generator) * spread).to(dtype)
