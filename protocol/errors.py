"""The one error tree, shared by both sides of the wire.

    OutboardError
    +-- ProtocolError            bytes or messages that break protocol/SPEC.md
    |   +-- VersionError         the peers speak different protocol versions
    |   +-- AuthError            wrong token, wrong key, or a socket that must not be open
    |   +-- LimitError           a message larger than the wire allows
    |   +-- MissingBlobError     a request names blobs the engine does not hold
    +-- RequestError             a well-formed request that cannot be honoured
    |   +-- UnsupportedRequestError   this model or engine cannot compute what was asked
    |   +-- InvalidRequestError       contradictory or impossible values
    +-- ModelError               a file that cannot be used
    |   +-- ModelNotFoundError   no such file under the engine's model roots
    |   +-- UnsupportedModelError     a file of a family the engine does not run
    |   +-- CheckpointError      damaged, incomplete or surplus content
    +-- ResourceError
    |   +-- OutOfMemoryError     the device or the host has no room
    +-- CancelledError           the user, or the user's ComfyUI, took the request back
    +-- EngineError
        +-- EngineStartError     the engine's processes did not come up
        +-- EngineLostError      the engine or one of its ranks died or went silent
        +-- InternalError        a fault of ours, with the remote traceback

Every class has a stable wire code; `to_record` / `from_record` carry an error across the wire.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import ClassVar


class OutboardError(Exception):
    """Base of every error this project raises on purpose.

    `message` says what happened and to what; `hint` says what to do about it.
    """

    code: ClassVar[str] = "outboard"

    def __init__(self, message: str, *, hint: str = "", details: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.details = dict(details or {})

    def __str__(self) -> str:
        return f"{self.message}\n{self.hint}" if self.hint else self.message


class ProtocolError(OutboardError):
    code = "protocol"


class VersionError(ProtocolError):
    code = "version"


class AuthError(ProtocolError):
    code = "auth"


class LimitError(ProtocolError):
    code = "limit"


class MissingBlobError(ProtocolError):
    """`details["digests"]` holds the missing digests, separated by spaces."""

    code = "missing_blob"


class RequestError(OutboardError):
    code = "request"


class UnsupportedRequestError(RequestError):
    code = "unsupported_request"


class InvalidRequestError(RequestError):
    code = "invalid_request"


class ModelError(OutboardError):
    code = "model"


class ModelNotFoundError(ModelError):
    code = "model_not_found"


class UnsupportedModelError(ModelError):
    code = "unsupported_model"


class CheckpointError(ModelError):
    code = "checkpoint"


class ResourceError(OutboardError):
    code = "resource"


class OutOfMemoryError(ResourceError):
    code = "out_of_memory"


class CancelledError(OutboardError):
    code = "cancelled"


class EngineError(OutboardError):
    code = "engine"


class EngineStartError(EngineError):
    code = "engine_start"


class EngineLostError(EngineError):
    code = "engine_lost"


class InternalError(EngineError):
    code = "internal"


def error_classes(root: type[OutboardError] = OutboardError) -> Iterator[type[OutboardError]]:
    """Yield `root` and every class below it."""
    yield root
    for child in root.__subclasses__():
        yield from error_classes(child)


def from_code(
    code: str, message: str, hint: str = "", details: Mapping[str, str] | None = None
) -> OutboardError:
    """Rebuild an error on the receiving side; an unknown code becomes the base class, never a crash."""
    for cls in error_classes():
        if cls.code == code:
            return cls(message, hint=hint, details=details)
    return OutboardError(f"[{code}] {message}", hint=hint, details=details)
