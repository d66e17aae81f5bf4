"""What every message record shares."""

from __future__ import annotations

import re
from typing import Annotated, ClassVar

from pydantic import BaseModel, ConfigDict, Field, InstanceOf

from ..values import WireTensor


class Record(BaseModel):
    """A frozen, typed part of a message. Fields a newer peer adds are ignored (SPEC.md, Compatibility)."""

    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)


class Message(Record):
    """A whole message; `type` names it on the wire, `terminal` says whether it ends a request."""

    type: ClassVar[str]
    terminal: ClassVar[bool] = False


_DIGEST = r"[0-9a-f]{32}"
_NAME = r"[A-Za-z0-9_.:-]{1,128}"
_IS_DIGEST, _IS_NAME = re.compile(_DIGEST), re.compile(_NAME)


def is_digest(value: str) -> bool:
    """Whether `value` has the form of a digest: 32 lower-case hexadecimal digits."""
    return _IS_DIGEST.fullmatch(value) is not None


def is_identifier(value: str) -> bool:
    """Whether `value` has the form of an identifier: 1 to 128 of A-Z a-z 0-9 _ . : -"""
    return _IS_NAME.fullmatch(value) is not None


Tensor = InstanceOf[WireTensor]
# Patterns that pydantic checks itself: every message carries some, and calls back into Python would add up.
Digest = Annotated[str, Field(pattern=rf"\A{_DIGEST}\z")]
MaybeDigest = Annotated[str, Field(pattern=rf"\A({_DIGEST})?\z")]
Identifier = Annotated[str, Field(pattern=rf"\A{_NAME}\z")]
Text = Annotated[str, Field(max_length=65536)]
