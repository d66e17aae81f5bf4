"""What one run has stored at the engine, so that what repeats at every step is compared and not hashed."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import torch

from ..protocol.blobs import SMALLEST
from ..protocol.torch import same_bits, to_wire
from ..protocol.values import Blob, Tree, WireTensor

#: Tensors of one form that are remembered: those of several conditionings, not those of every step.
KEPT = 8

Form = tuple[torch.dtype, torch.Size]


class Known:
    """Tensors by their bytes. `store` gives the engine a tensor, and answers what it is called there."""

    def __init__(self, store: Callable[[WireTensor], Tree]) -> None:
        self._store = store
        self._kept: dict[Form, deque[tuple[torch.Tensor, Blob]]] = {}

    def wire(self, tensor: torch.Tensor) -> Tree:
        """The tensor as a Blob; as it is when it is small."""
        host = tensor.detach().cpu().contiguous()
        if host.numel() * host.element_size() < SMALLEST:
            return to_wire(host)
        kept = self._kept.setdefault((host.dtype, host.shape), deque(maxlen=KEPT))
        for own, blob in kept:
            if same_bits(own, host):
                return blob
        # Its owner may write into it; what the engine was given stays comparable, and can be given again.
        own = host.clone()
        stored = self._store(to_wire(own))
        if isinstance(stored, Blob):
            kept.append((own, stored))
        return stored
