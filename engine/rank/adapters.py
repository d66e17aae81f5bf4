"""The sets of adapters a rank holds, by digest; a tensor that several sets have is held once."""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from ...protocol.adapters import set_digest
from ...protocol.errors import InvalidRequestError, LimitError, MissingBlobError
from ...protocol.messages.adapters import LoraFile, WeightPatch
from ...protocol.messages.client import PutAdapters
from ...protocol.tensors import digest
from ...protocol.torch import from_wire
from ...protocol.values import Blob, WireTensor
from ..lora.patch import Patch
from .blobs import BlobStore


@dataclass(frozen=True)
class FileEntry:
    """A LoRA file that the supervisor has found at `path`; `file` says which it must be."""

    path: str
    file: LoraFile


Entry = Patch | FileEntry


@dataclass(frozen=True, eq=False)
class Held:
    """One set: its adapters in order, and the digests of all its tensors."""

    entries: tuple[Entry, ...]
    tensors: frozenset[str]


class AdapterStore:
    """Sets whose tensors take at most `budget` bytes of host memory, the least used dropped first.

    Safe between the io thread, which puts, and the main thread. `blobs` is asked for tensors, too.
    """

    def __init__(self, budget: int, blobs: BlobStore) -> None:
        self._budget = budget
        self._blobs = blobs
        self._lock = threading.Lock()
        self._sets: OrderedDict[str, Held] = OrderedDict()
        self._tensors: dict[str, Tensor] = {}
        self._uses: Counter[str] = Counter()
        self._nbytes = 0

    @property
    def nbytes(self) -> int:
        return self._nbytes

    def get(self, name: str) -> tuple[Entry, ...]:
        """The adapters of a set, none for "". Raises MissingBlobError when it is not here."""
        if not name:
            return ()
        with self._lock:
            if name not in self._sets:
                raise _missing([name])
            self._sets.move_to_end(name)
            return self._sets[name].entries

    def put(self, message: PutAdapters, paths: Sequence[str]) -> None:
        """Keep a set; `paths` are those of its files, in order.

        Raises InvalidRequestError for a wrong digest, MissingBlobError for parts and tensors that are neither
        here nor in the message, LimitError for a set beyond the whole budget.
        """
        with self._lock:
            if message.digest in self._sets:
                self._sets.move_to_end(message.digest)
                return
        names = {id(wire): digest(wire) for wire in _given(message.adapters)}
        given = {names[id(wire)]: wire for wire in _given(message.adapters)}
        adapters = [_named(adapter, names) for adapter in message.adapters]
        if set_digest(message.parts, adapters) != message.digest:
            raise InvalidRequestError(
                f"The adapters called {message.digest} have another digest: "
                "they were damaged on their way, or have fields that this engine does not know.",
                hint="Update the older of the two installations.",
            )
        with self._lock:
            self._keep(message, self._held(message.parts, adapters, given, iter(paths)))

    def _held(
        self,
        parts: Sequence[str],
        adapters: Sequence[WeightPatch | LoraFile],
        given: Mapping[str, WireTensor],
        paths: Iterator[str],
    ) -> tuple[Held, dict[str, Tensor]]:
        """The set, and its tensors by digest."""
        missing = [part for part in parts if part not in self._sets]
        tensors, unknown = self._find(set(_names(adapters)), given)
        if missing or unknown:
            raise _missing(missing + unknown)
        earlier = [self._sets[part] for part in parts]
        own = [_entry(adapter, tensors, paths) for adapter in adapters]
        tensors |= {name: self._tensors[name] for part in earlier for name in part.tensors}
        entries = (*(entry for part in earlier for entry in part.entries), *own)
        return Held(entries, frozenset(tensors)), tensors

    def _find(
        self, names: Iterable[str], given: Mapping[str, WireTensor]
    ) -> tuple[dict[str, Tensor], list[str]]:
        """The tensors called `names`, and those names that are unknown."""
        found: dict[str, Tensor] = {}
        unknown: list[str] = []
        for name in sorted(names):
            if name in self._tensors:
                found[name] = self._tensors[name]
            elif name in given:
                # The bytes belong to a frame or to the client's shared memory; a set outlives both.
                found[name] = from_wire(given[name]).clone()
            else:
                held = self._blobs.find(name)
                unknown += [name] if held is None else []
                found |= {} if held is None else {name: held}
        return found, unknown

    def _keep(self, message: PutAdapters, new: tuple[Held, dict[str, Tensor]]) -> None:
        held, tensors = new
        needed = sum(tensor.nbytes for tensor in tensors.values())
        if needed > self._budget:
            raise LimitError(
                f"Adapters of {needed} bytes exceed the engine's whole adapter budget of {self._budget}.",
                hint="Start the engine with a larger --adapter-budget.",
            )
        for name, tensor in tensors.items():
            self._nbytes += 0 if self._uses[name] else tensor.nbytes
            self._uses[name] += 1
            self._tensors[name] = tensor
        self._sets[message.digest] = held
        while self._nbytes > self._budget:
            self._forget(next(iter(self._sets)))

    def _forget(self, digest: str) -> None:
        for name in self._sets.pop(digest).tensors:
            self._uses[name] -= 1
            if not self._uses[name]:
                del self._uses[name]
                self._nbytes -= self._tensors.pop(name).nbytes


def _given(adapters: Iterable[WeightPatch | LoraFile]) -> Iterator[WireTensor]:
    """The tensors that came with the message."""
    for adapter in adapters:
        if isinstance(adapter, WeightPatch):
            yield from (value for value in adapter.tensors.values() if isinstance(value, WireTensor))


def _named(adapter: WeightPatch | LoraFile, names: Mapping[int, str]) -> WeightPatch | LoraFile:
    """`adapter` with its tensors only named."""
    if isinstance(adapter, LoraFile):
        return adapter
    tensors = {
        role: value if isinstance(value, Blob) else Blob(names[id(value)])
        for role, value in adapter.tensors.items()
    }
    return adapter.model_copy(update={"tensors": tensors})


def _names(adapters: Iterable[WeightPatch | LoraFile]) -> Iterator[str]:
    for adapter in adapters:
        if isinstance(adapter, WeightPatch):
            yield from (value.digest for value in adapter.tensors.values() if isinstance(value, Blob))


def _entry(adapter: WeightPatch | LoraFile, tensors: Mapping[str, Tensor], paths: Iterator[str]) -> Entry:
    if isinstance(adapter, LoraFile):
        return FileEntry(next(paths), adapter)
    return Patch(
        key=adapter.key,
        kind=adapter.kind,
        tensors={
            role: tensors[value.digest] for role, value in adapter.tensors.items() if isinstance(value, Blob)
        },
        strength=adapter.strength,
        strength_model=adapter.strength_model,
        alpha=adapter.alpha,
        offset=None if adapter.offset is None else (adapter.offset[0], adapter.offset[1], adapter.offset[2]),
        bypass=adapter.bypass,
    )


def _missing(names: Sequence[str]) -> MissingBlobError:
    return MissingBlobError(
        f"The engine does not hold {len(names)} of the request's adapters or their tensors.",
        hint="The client sends them again.",
        details={"digests": " ".join(names)},
    )
