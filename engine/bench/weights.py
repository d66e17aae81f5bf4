"""Random weights under a family's published names, so that a benchmark needs no download."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from math import prod
from pathlib import Path

import torch

from ..models.family import Config, Family
from ..models.plan import state_shapes

Shape = tuple[int, ...]
BLOCK = 16 << 20


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


def file_size(shapes: Mapping[str, Shape]) -> int:
    """Bytes of the weights of such a file in bfloat16."""
    return sum(prod(shape) for shape in shapes.values()) * 2


def write_file(path: Path, shapes: Mapping[str, Shape]) -> None:
    """A file of real bytes in bfloat16, tensor after tensor, without ever holding more than a block of it."""
    entries: dict[str, object] = {}
    end = 0
    for name, shape in shapes.items():
        start, end = end, end + prod(shape) * 2
        entries[name] = {"dtype": "BF16", "shape": shape, "data_offsets": (start, end)}
    raw = json.dumps(entries).encode()
    generator = torch.Generator().manual_seed(0)
    block = (torch.randn(BLOCK // 2, generator=generator) * 0.02).bfloat16().view(torch.uint8).numpy().data
    with path.open("wb") as file:
        file.write(len(raw).to_bytes(8, "little") + raw)
        for written in range(0, end, BLOCK):
            file.write(block[: end - written])
