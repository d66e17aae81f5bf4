"""ComfyUI's interrupt, seen from a wait for the engine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import comfy.model_management

from ..protocol.errors import CancelledError


def check() -> None:
    """Raise CancelledError while the user's interrupt is pending; it is left pending."""
    if comfy.model_management.processing_interrupted():
        raise CancelledError("The user interrupted this prompt.")


@contextmanager
def translated() -> Iterator[None]:
    """Turn a cancelled request into ComfyUI's own interrupt, which ends the prompt without an error box."""
    try:
        yield
    except CancelledError:
        comfy.model_management.throw_exception_if_processing_interrupted()
        raise
