"""Errors as messages and back."""

from __future__ import annotations

from .errors import OutboardError, from_code
from .messages.engine import Error

_LONGEST = 60_000


def to_message(error: OutboardError) -> Error:
    """The `error` message for an exception; texts are cut to what the wire takes."""
    return Error(
        code=error.code,
        message=error.message[:_LONGEST],
        hint=error.hint[:_LONGEST],
        details={key: text[:_LONGEST] for key, text in error.details.items()},
    )


def from_message(message: Error) -> OutboardError:
    """The exception an `error` message stands for."""
    return from_code(message.code, message.message, message.hint, message.details)
