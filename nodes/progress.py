"""What the page shows while the engine is queueing or loading, before the first step."""

from __future__ import annotations

import time
from typing import Any

import comfy.utils
from server import PromptServer

from ..protocol.messages import Message
from ..protocol.messages.engine import Progress
from .compat import current_node

INTERVAL = 0.1
#: Seconds that a wait must last to be worth a text on the node.
PATIENCE = 1.0
MIB = 2**20


class LoadingProgress:
    """Feeds ComfyUI's progress bar, and after a while the node's text, from `progress` events."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._node = current_node()
        self._began = time.monotonic()
        self._shown = 0.0
        self._bar: Any = None

    def __call__(self, event: Message) -> None:
        if not isinstance(event, Progress):
            return
        now = time.monotonic()
        if event.done < event.total and now - self._shown < INTERVAL:
            return
        self._shown = now
        if self._node and now - self._began > PATIENCE:
            PromptServer.instance.send_progress_text(self._text(event), self._node)
        if event.phase == "loading" and event.total:
            self._bar = self._bar or comfy.utils.ProgressBar(event.total)
            self._bar.update_absolute(event.done, event.total)

    def _text(self, event: Progress) -> str:
        if event.phase == "queued":
            return event.text or "Waiting for the engine"
        if event.done >= event.total:
            return f"Loaded {self._name}"
        return f"Loading {self._name}: {event.done // MIB} of {event.total // MIB} MiB"
