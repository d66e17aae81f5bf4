"""The table that ties a checkpoint's tensors to a module's: whole tensors, or rows of fused ones."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

from ...protocol.errors import CheckpointError

Rows = tuple[int, int]
BLOCK = re.compile(r"(\b\w*(?:blocks|layers|refiner))\.(\d+)\.")


@dataclass(frozen=True)
class Copy:
    """Rows of the file's `source` that are rows of the module's `target`: [first, stop), None for all."""

    source: str
    target: str
    source_rows: Rows | None = None
    target_rows: Rows | None = None


def linear(source: str, target: str) -> Iterator[Copy]:
    """Tie weight and bias of one layer."""
    for leaf in ("weight", "bias"):
        yield Copy(f"{source}.{leaf}", f"{target}.{leaf}")


def fused(source: str, targets: Sequence[tuple[str, int]]) -> Iterator[Copy]:
    """Tie a fused layer to its parts, given as (target, number of output rows) in the file's order."""
    for leaf in ("weight", "bias"):
        start = 0
        for target, rows in targets:
            yield Copy(f"{source}.{leaf}", f"{target}.{leaf}", (start, start + rows), (0, rows))
            start += rows


def swapped(source: str, target: str, half: int) -> Iterator[Copy]:
    """Tie a layer whose two halves of `half` rows (shift and scale) stand in opposite order."""
    for leaf in ("weight", "bias"):
        yield Copy(f"{source}.{leaf}", f"{target}.{leaf}", (0, half), (half, 2 * half))
        yield Copy(f"{source}.{leaf}", f"{target}.{leaf}", (half, 2 * half), (0, half))


def identity(names: Iterable[str]) -> Iterator[Copy]:
    """Tie tensors that have the same name on both sides."""
    return (Copy(name, name) for name in names)


def renamed(names: Iterable[str], table: Mapping[str, str]) -> Iterator[Copy]:
    """Tie tensors whose module has another name in the file; those of no entry keep their name.

    `table` maps the module's name to the file's, without weight or bias; `blocks.*.` stands for any block,
    and the longest entry wins.
    """
    for name in names:
        number = BLOCK.search(name)
        general = BLOCK.sub(r"\1.*.", name, count=1)
        entry = max((key for key in table if f"{general}.".startswith(f"{key}.")), key=len, default=None)
        source = general if entry is None else table[entry] + general[len(entry) :]
        yield Copy(source.replace("*", number[2]) if number else source, name)


def completed(
    copies: Iterable[Copy], shapes: Mapping[str, Sequence[int]], table: Mapping[str, str]
) -> list[Copy]:
    """Those of `copies` whose target exists (a layer may have no bias), and all other tensors `renamed`."""
    special = [copy for copy in copies if copy.target in shapes]
    covered = {copy.target for copy in special}
    return [*special, *renamed((name for name in shapes if name not in covered), table)]


def block_count(shapes: Iterable[str], prefix: str) -> int:
    """Number of different block indices N among the names `<prefix>N.<rest>`."""
    return len({name[len(prefix) :].split(".", 1)[0] for name in shapes if name.startswith(prefix)})


def to_checkpoint(state: Mapping[str, torch.Tensor], copies: Sequence[Copy]) -> dict[str, torch.Tensor]:
    """Turn a module's state dict into the file's tensors (contiguous; whole ones share memory with `state`).

    Raises CheckpointError unless the table covers exactly the keys of `state`.
    """
    _check_same_keys(state, {copy.target for copy in copies})
    tensors: dict[str, torch.Tensor] = {}
    for copy in copies:
        part = state[copy.target].detach()
        if copy.source_rows is None or copy.target_rows is None:
            tensors[copy.source] = part.contiguous()
            continue
        if copy.source not in tensors:
            tensors[copy.source] = part.new_empty((source_height(copy.source, copies), *part.shape[1:]))
        tensors[copy.source][slice(*copy.source_rows)] = part[slice(*copy.target_rows)]
    return tensors


def source_height(source: str, copies: Iterable[Copy]) -> int:
    """Number of rows that the slices of `source` span."""
    return max(copy.source_rows[1] for copy in copies if copy.source == source and copy.source_rows)


def _check_same_keys(state: Mapping[str, torch.Tensor], expected: set[str]) -> None:
    missing, surplus = sorted(expected - state.keys()), sorted(state.keys() - expected)
    if missing or surplus:
        raise CheckpointError(
            f"This state dict does not fit the family's layout: missing {missing}, surplus {surplus}.",
            hint="Pass the complete state dict of the transformer alone.",
        )
