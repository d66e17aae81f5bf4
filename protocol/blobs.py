"""What a client remembers of the blobs it gave the engine, so that it can give them again."""

from __future__ import annotations

from collections import OrderedDict

from .values import WireTensor

#: Tensors smaller than this are sent along; a blob would cost a round trip to save nothing.
SMALLEST = 16 << 10


class BlobMemory:
    """Least recently used tensors by digest, at most `budget` bytes of them beside those in use."""

    def __init__(self, budget: int = 1 << 30) -> None:
        self._budget = budget
        self._tensors: OrderedDict[str, WireTensor] = OrderedDict()
        self._nbytes = 0

    def __contains__(self, digest: str) -> bool:
        return digest in self._tensors

    def __len__(self) -> int:
        return len(self._tensors)

    def touch(self, digest: str) -> WireTensor | None:
        """The tensor of that digest, now the most recently used; None when it is not remembered."""
        if digest in self._tensors:
            self._tensors.move_to_end(digest)
        return self._tensors.get(digest)

    def add(self, digest: str, tensor: WireTensor) -> None:
        """Remember a tensor, whose memory must not change from now on."""
        if self.touch(digest) is None:
            self._tensors[digest] = tensor
            self._nbytes += tensor.nbytes

    def trim(self, in_use: set[str]) -> None:
        """Forget the oldest until the budget holds, except those in use."""
        for digest in list(self._tensors):
            if self._nbytes <= self._budget:
                return
            if digest not in in_use:
                self._nbytes -= self._tensors.pop(digest).nbytes

    def clear(self) -> None:
        """Forget everything."""
        self._tensors.clear()
        self._nbytes = 0
