"""Nodes that choose how ComfyUI computes: the engine decides that itself, and the log says so once."""

from __future__ import annotations

import logging


class Notice:
    """A log line that appears once per process."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._told = False

    def once(self) -> None:
        if not self._told:
            self._told = True
            logging.warning(self._text)


ATTENTION = Notice(
    "Outboard: the attention chosen by ModelAttentionBackend has no effect; the engine has its own."
)
COMPILE = Notice("Outboard: TorchCompileModel has no effect; the engine decides what it compiles.")
DEVICE = Notice(
    "Outboard: the device chosen by SelectModelDevice has no effect; the engine decides where it computes. "
    "Outboard Engine chooses its device."
)
SPLIT = Notice(
    "Outboard: MultiGPU_WorkUnits has no effect; the engine decides which devices share the work of a model."
)
