"""What a message field may hold besides plain numbers and text: tensors, blobs, and trees of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, TypeAlias

from .errors import ProtocolError

#: Wire dtype name -> bytes per element. Names are torch's own, without the prefix.
ITEM_SIZES: Mapping[str, int] = {
    "float64": 8,
    "float32": 4,
    "float16": 2,
    "bfloat16": 2,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "int64": 8,
    "int32": 4,
    "int16": 2,
    "int8": 1,
    "uint8": 1,
    "bool": 1,
}


@dataclass(frozen=True)
class Place:
    """Where a tensor lies in shared memory: segment name and byte offset."""

    segment: str
    offset: int


@dataclass(frozen=True, eq=False, init=False)
class WireTensor:
    """A dense, C-contiguous tensor as bytes: what crosses the wire beside a message, never inside it.

    dtype: a key of ITEM_SIZES; shape: non-negative lengths; data: exactly prod(shape) * item size bytes;
    place: where they lie in shared memory already; same: whether they are what lay there in the last message
    that named the place.
    """

    dtype: str
    shape: tuple[int, ...]
    data: memoryview
    place: Place | None
    same: bool

    def __init__(
        self,
        dtype: str,
        shape: tuple[int, ...],
        data: memoryview,
        place: Place | None = None,
        same: bool = False,
    ) -> None:
        size = ITEM_SIZES.get(dtype)
        if size is None:
            raise ProtocolError(f"tensor dtype {dtype!r} is not one of {', '.join(ITEM_SIZES)}")
        if shape and min(shape) < 0:
            raise ProtocolError(f"tensor shape {shape} has a negative length")
        expected = prod(shape) * size
        if data.nbytes != expected:
            raise ProtocolError(f"tensor {dtype}{list(shape)} needs {expected} bytes, got {data.nbytes}")
        # At once: a frozen dataclass of its own accord would set one after the other, for every tensor sent.
        vars(self).update(dtype=dtype, shape=shape, data=data, place=place, same=same)

    @property
    def nbytes(self) -> int:
        return self.data.nbytes


@dataclass(frozen=True)
class Blob:
    """A tensor the engine already holds, named by the digest of its dtype, shape and bytes (see SPEC.md)."""

    digest: str


Leaf: TypeAlias = bool | int | float | str | WireTensor | Blob | None
#: A conditioning argument: a leaf, or lists and string-keyed dicts of such.
Tree: TypeAlias = Any


def map_leaves(tree: Tree, function: Callable[[Any], Any]) -> Tree:
    """Return `tree` with every leaf (anything but a mapping or a list/tuple) replaced by `function(leaf)`."""
    if isinstance(tree, Mapping):
        return {key: map_leaves(value, function) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return [map_leaves(value, function) for value in tree]
    return function(tree)


def leaves(tree: Tree) -> Iterator[Any]:
    """Yield every leaf of `tree`, depth first."""
    if isinstance(tree, Mapping):
        children: Sequence[Any] = list(tree.values())
    elif isinstance(tree, list | tuple):
        children = tree
    else:
        yield tree
        return
    for child in children:
        yield from leaves(child)
