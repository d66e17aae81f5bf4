"""Tensors by the digest of their content, which is computed once for each tensor object."""

from __future__ import annotations

import threading
from collections.abc import MutableMapping

import torch
from torch.utils.weak import WeakTensorKeyDictionary

from ..protocol.tensors import digest
from ..protocol.torch import to_wire
from ..protocol.values import Blob, WireTensor


class NamedTensors:
    """Knows the names of tensors for as long as they live. Nobody may write into one that it has seen."""

    def __init__(self) -> None:
        self._names: MutableMapping[torch.Tensor, str] = WeakTensorKeyDictionary()
        self._lock = threading.Lock()

    def name(self, tensor: torch.Tensor) -> tuple[Blob, WireTensor]:
        """What to call `tensor`, and its bytes; a dense CPU tensor is viewed, not copied."""
        wire = to_wire(tensor)
        with self._lock:
            found = self._names.get(tensor)
        if found is None:
            found = digest(wire)
            with self._lock:
                self._names[tensor] = found
        return Blob(found), wire


NAMED = NamedTensors()
