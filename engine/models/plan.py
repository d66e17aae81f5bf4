"""What must be read from a file to fill a module, checked to fit exactly before any weight is read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch

from ...protocol.errors import CheckpointError
from .header import TensorInfo
from .keymap import Copy
from .quant.layer import Layer
from .registry import Detected

SHOWN = 8


@dataclass(frozen=True)
class Read:
    """Rows [first, first + rows) of a stored tensor become rows from `target_first` of `target`.

    `key` is the tensor's name in the file; `layer` says how it is stored when it is quantised; values are
    rounded to `through` on their way.
    """

    key: str
    info: TensorInfo
    target: str
    first: int
    target_first: int
    rows: int
    layer: Layer | None = None
    through: torch.dtype | None = None

    @property
    def nbytes(self) -> int:
        return (self.info.end - self.info.start) // max(1, _height(self.info.shape)) * self.rows


def make_plan(detected: Detected, shapes: Mapping[str, Sequence[int]]) -> list[Read]:
    """Reads that fill tensors of the given names and shapes, in file order.

    Raises CheckpointError naming every missing, unused or wrongly shaped key (all of them in `details`).
    """
    copies = list(detected.family.key_map(shapes))
    assert {copy.target for copy in copies} == set(shapes), "the family's key map does not cover its module"
    present = detected.contents
    sources = {copy.source for copy in copies}
    unused = sorted(present.keys() - sources - detected.family.unread)
    wrong = sorted(_wrong_shapes([copy for copy in copies if copy.source in present], detected, shapes))
    _raise_unless_exact(detected, sorted(sources - present.keys()), unused, wrong)
    reads = [_read(copy, detected, shapes[copy.target]) for copy in copies]
    return sorted(reads, key=lambda read: (read.info.start, read.first))


def _height(shape: Sequence[int]) -> int:
    return shape[0] if shape else 1


def _read(copy: Copy, detected: Detected, shape: Sequence[int]) -> Read:
    first, stop = copy.source_rows or (0, _height(shape))
    target_first = copy.target_rows[0] if copy.target_rows else 0
    info, layer = detected.contents[copy.source], detected.layers.get(copy.source)
    key = detected.stored[copy.source]
    return Read(key, info, copy.target, first, target_first, stop - first, layer)


def _wrong_shapes(
    copies: Iterable[Copy], detected: Detected, shapes: Mapping[str, Sequence[int]]
) -> set[str]:
    present, layers = detected.contents, detected.layers
    expected: dict[str, list[int]] = {}
    for copy in copies:
        shape = list(shapes[copy.target])
        if copy.source_rows:
            shape[0] = max(copy.source_rows[1], expected.get(copy.source, [0])[0])
        expected[copy.source] = shape
    return {
        f"{source} (is {list(present[source].shape)}, needs {shape})"
        for source, shape in expected.items()
        if not (
            layers[source].fits(tuple(shape)) if source in layers else list(present[source].shape) == shape
        )
    }


def _raise_unless_exact(detected: Detected, missing: list[str], unused: list[str], wrong: list[str]) -> None:
    stored = detected.stored
    faults = {
        "missing": [detected.prefix + key for key in missing],
        "unused": [stored[key] for key in unused],
        "wrong shape": wrong,
    }
    faults = {kind: keys for kind, keys in faults.items() if keys}
    if faults:
        listed = "; ".join(f"{len(keys)} {kind}: {_shorten(keys)}" for kind, keys in faults.items())
        raise CheckpointError(
            f"{detected.contents.path}: does not fit {detected.family.title}: {listed}.",
            hint="The file is incomplete, altered, or of a variant that is not yet supported.",
            details={kind.replace(" ", "_"): "\n".join(keys) for kind, keys in faults.items()},
        )


def _shorten(keys: list[str]) -> str:
    more = f" and {len(keys) - SHOWN} more" if len(keys) > SHOWN else ""
    return ", ".join(keys[:SHOWN]) + more


def nbytes(reads: Iterable[Read]) -> int:
    """Bytes that the reads take from the file."""
    return sum(read.nbytes for read in reads)


def state_shapes(module: torch.nn.Module) -> dict[str, torch.Size]:
    """Names and shapes of a module's state dict."""
    return {name: tensor.shape for name, tensor in module.state_dict().items()}
