"""ControlNet residuals on their way: shared memory where there is some, and each object once in a message."""

from __future__ import annotations

import logging

import torch

from ..protocol.shelf import Shelf
from ..protocol.torch import TorchSource, to_wire
from ..protocol.values import WireTensor


class Residuals:
    """Those of one run. For each message: `begin`, `wire` each tensor, send, and `settled` before use."""

    def __init__(self, shelf: Shelf | None) -> None:
        self._shelf = shelf
        self._framed: dict[int, WireTensor] = {}
        self._told = False

    def begin(self) -> None:
        """A new message; the one before has had its reply."""
        self._framed.clear()
        if self._shelf is not None:
            self._shelf.begin()

    def wire(self, tensor: torch.Tensor) -> WireTensor:
        """The tensor as it is sent; the same object is the same WireTensor."""
        placed = self._shelf.place(TorchSource(tensor)) if self._shelf and tensor.numel() else None
        if placed is None:
            self._tell_why()
            placed = self._framed.setdefault(id(tensor), to_wire(tensor))
        return placed

    def look(self) -> None:
        """Use the time in which the engine computes to see what has changed."""
        if self._shelf is not None:
            self._shelf.settle()

    def settled(self) -> bool:
        """Whether the message carried what the tensors hold; if not, wire all of them once more."""
        return self._shelf is None or self._shelf.settle()

    def close(self, *, reusable: bool) -> None:
        """The run is over; not `reusable` when the engine may still read."""
        if self._shelf is not None:
            self._shelf.close(reusable=reusable)

    def _tell_why(self) -> None:
        if self._shelf is None or self._told or not self._shelf.shortage:
            return
        self._told = True
        logging.warning(
            "Outboard: ControlNet residuals go through a socket, much slower than shared memory: %s. "
            "Make more room there (in Docker: --shm-size=8g).",
            self._shelf.shortage,
        )
