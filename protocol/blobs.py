"""What a client remembers of the things it gave the engine, so that it can give them again."""

from __future__ import annotations

from collections import OrderedDict
from typing import Generic, Protocol, TypeVar

#: Tensors smaller than this are sent along; a blob would cost a round trip to save nothing.
SMALLEST = 16 << 10


class Sizeable(Protocol):
    """Something that takes memory."""

    @property
    def nbytes(self) -> int: ...


Item = TypeVar("Item", bound=Sizeable)


class BlobMemory(Generic[Item]):
    """Least recently used things by digest, at most `budget` bytes of them beside those in use."""

    def __init__(self, budget: int = 1 << 30) -> None:
        self._budget = budget
        self._items: OrderedDict[str, Item] = OrderedDict()
        self._nbytes = 0

    def __contains__(self, digest: str) -> bool:
        return digest in self._items

    def __len__(self) -> int:
        return len(self._items)

    def touch(self, digest: str) -> Item | None:
        """What has that digest, now the most recently used; None when it is not remembered."""
        if digest in self._items:
            self._items.move_to_end(digest)
        return self._items.get(digest)

    def add(self, digest: str, item: Item) -> None:
        """Remember a thing, whose memory must not change from now on."""
        if self.touch(digest) is None:
            self._items[digest] = item
            self._nbytes += item.nbytes

    def trim(self, in_use: set[str]) -> None:
        """Forget the oldest until the budget holds, except those in use."""
        for digest in list(self._items):
            if self._nbytes <= self._budget:
                return
            if digest not in in_use:
                self._nbytes -= self._items.pop(digest).nbytes

    def clear(self) -> None:
        """Forget everything."""
        self._items.clear()
        self._nbytes = 0
