"""The blobs a rank holds: conditioning sent once, named by its digest, the least used dropped first."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable

from torch import Tensor

from ...protocol.errors import LimitError, MissingBlobError, ProtocolError
from ...protocol.tensors import digest
from ...protocol.torch import from_wire
from ...protocol.values import WireTensor


class BlobStore:
    """Tensors in host memory by digest, at most `budget` bytes; safe between the io and the main thread."""

    def __init__(self, budget: int) -> None:
        self._budget = budget
        self._lock = threading.Lock()
        self._tensors: OrderedDict[str, Tensor] = OrderedDict()
        self._nbytes = 0

    @property
    def nbytes(self) -> int:
        return self._nbytes

    def put(self, name: str, wire: WireTensor) -> None:
        """Keep a copy of `wire`. ProtocolError if `name` is not its digest, LimitError if it cannot fit."""
        if wire.nbytes > self._budget:
            raise LimitError(
                f"A blob of {wire.nbytes} bytes exceeds the engine's whole blob budget of {self._budget}.",
                hint="Start the engine with a larger --blob-budget.",
            )
        found = digest(wire)
        if found != name:
            raise ProtocolError(f"The blob called {name} has the digest {found}; its bytes were damaged.")
        # The bytes belong to a frame or to the client's shared memory; a blob outlives both.
        tensor = from_wire(wire).clone()
        with self._lock:
            self._forget(name)
            self._tensors[name] = tensor
            self._nbytes += wire.nbytes
            while self._nbytes > self._budget:
                self._forget(next(iter(self._tensors)))

    def get(self, names: Iterable[str]) -> dict[str, Tensor]:
        """The tensors called `names`, or MissingBlobError naming every one that is not here."""
        with self._lock:
            wanted = set(names)
            missing = sorted(wanted - self._tensors.keys())
            if missing:
                raise MissingBlobError(
                    f"The engine no longer holds {len(missing)} of the request's tensors.",
                    hint="The client sends them again.",
                    details={"digests": " ".join(missing)},
                )
            for name in wanted:
                self._tensors.move_to_end(name)
            return {name: self._tensors[name] for name in wanted}

    def find(self, name: str) -> Tensor | None:
        """The tensor called `name`, now the most recently used; None when it is not here."""
        with self._lock:
            if name in self._tensors:
                self._tensors.move_to_end(name)
            return self._tensors.get(name)

    def _forget(self, name: str) -> None:
        tensor = self._tensors.pop(name, None)
        if tensor is not None:
            self._nbytes -= tensor.nbytes
