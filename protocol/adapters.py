"""Sets of adapters: what they are called by their content, and the messages that give them to an engine."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import blake2b
from typing import Any

from .messages.adapters import LoraFile, WeightPatch
from .messages.client import PutAdapters
from .packing import BLOB
from .tensors import digest
from .values import Blob, WireTensor

#: What one message holds at most: its header stays well below the limit, and its tensors are quick to hash.
LARGEST_COUNT = 512
LARGEST_BYTES = 64 << 20


def set_digest(parts: Sequence[str], adapters: Iterable[WeightPatch | LoraFile]) -> str:
    """The digest of a set (SPEC.md, Adapters), whether its tensors are there or only named."""
    whole = {"parts": list(parts), "adapters": [_plain(adapter) for adapter in adapters]}
    text = json.dumps(whole, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return blake2b(text.encode("ascii"), digest_size=16).hexdigest()


def _plain(adapter: WeightPatch | LoraFile) -> dict[str, Any]:
    fields = dict(vars(adapter))
    if isinstance(adapter, WeightPatch):
        fields["tensors"] = {name: {BLOB: name_of(value)} for name, value in adapter.tensors.items()}
    return fields


def name_of(value: WireTensor | Blob) -> str:
    """The digest of a tensor that is there, or that is only named."""
    return value.digest if isinstance(value, Blob) else digest(value)


@dataclass(frozen=True, eq=False)
class AdapterSet:
    """Adapters in order, their tensors only named; `tensors` has those of them that a client can send.

    The tensors' memory must not change.
    """

    adapters: Sequence[WeightPatch | LoraFile]
    tensors: Mapping[str, WireTensor] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors.values())

    @property
    def digest(self) -> str:
        return self.messages[-1].digest

    @cached_property
    def messages(self) -> Sequence[PutAdapters]:
        """What gives the set to an engine, in order: its parts and then the whole, or the whole alone."""
        parts = [_message([], group) for group in self._groups()]
        return parts if len(parts) == 1 else [*parts, _message([part.digest for part in parts], [])]

    def with_tensors(self, message: PutAdapters, wanted: Iterable[str]) -> PutAdapters:
        """`message` with its `wanted` tensors themselves in place of their names."""
        sent = {name: self.tensors[name] for name in wanted}
        adapters = [_sending(adapter, sent) for adapter in message.adapters]
        return message.model_copy(update={"adapters": adapters})

    def _groups(self) -> Iterator[list[WeightPatch | LoraFile]]:
        """The adapters, cut where one message would become too large."""
        group: list[WeightPatch | LoraFile] = []
        nbytes = 0
        for adapter in self.adapters:
            size = sum(self.tensors[name].nbytes for name in _names(adapter) if name in self.tensors)
            if group and (len(group) == LARGEST_COUNT or nbytes + size > LARGEST_BYTES):
                yield group
                group, nbytes = [], 0
            group.append(adapter)
            nbytes += size
        yield group


def _message(parts: list[str], adapters: list[WeightPatch | LoraFile]) -> PutAdapters:
    return PutAdapters(digest=set_digest(parts, adapters), parts=parts, adapters=adapters)


def _names(adapter: WeightPatch | LoraFile) -> list[str]:
    return [name_of(value) for value in adapter.tensors.values()] if isinstance(adapter, WeightPatch) else []


def _sending(adapter: WeightPatch | LoraFile, sent: Mapping[str, WireTensor]) -> WeightPatch | LoraFile:
    if not isinstance(adapter, WeightPatch):
        return adapter
    tensors = {name: sent.get(name_of(value), value) for name, value in adapter.tensors.items()}
    return adapter.model_copy(update={"tensors": tensors})
