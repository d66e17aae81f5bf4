"""What a per-step run has on the device already: blobs, and tensors that the client says are the same."""

from __future__ import annotations

import torch
from torch import Tensor

from ...protocol.torch import from_wire
from ...protocol.values import Place, WireTensor

Key = str | tuple[Place, str, tuple[int, ...]]


class Kept:
    """Device copies of what repeats from call to call. On the CPU there are none: views cost nothing."""

    def __init__(self) -> None:
        self._tensors: dict[Key, Tensor] = {}

    def blob(self, name: str, held: Tensor, device: torch.device) -> Tensor:
        """The blob called `name`, which the host holds as `held`, on `device`."""
        return self._on(device, name, held)

    def tensor(self, wire: WireTensor, device: torch.device) -> Tensor:
        """`wire` on `device`: kept from the message that first calls it the same to one that does not."""
        key = None if wire.place is None else (wire.place, wire.dtype, wire.shape)
        if key is not None and wire.same:
            return self._on(device, key, from_wire(wire))
        if key is not None:
            self._tensors.pop(key, None)
        return from_wire(wire).to(device)

    def _on(self, device: torch.device, key: Key, held: Tensor) -> Tensor:
        if device == held.device:
            return held
        if key not in self._tensors:
            self._tensors[key] = held.to(device)
        return self._tensors[key]
