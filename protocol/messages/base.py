"""What every message record shares."""

from __future__ import annotations

import re
from typing import Annotated, Any, ClassVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, InstanceOf

from ..values import WireTensor


class Record(BaseModel):
    """A frozen, typed part of a message. Fields a newer peer adds are ignored (SPEC.md, Compatibility)."""

    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)


class Message(Record):
    """A whole message; `type` names it on the wire, `terminal` says whether it ends a request."""

    type: ClassVar[str]
    terminal: ClassVar[bool] = False

    def fields(self) -> dict[str, Any]:
        """The body, one level deep: field name -> value, tensors left as they are."""
        return {name: getattr(self, name) for name in type(self).model_fields}


_DIGEST = re.compile(r"[0-9a-f]{32}")
_NAME = re.compile(r"[A-Za-z0-9_.:-]{1,128}")


def is_digest(value: str) -> bool:
    """Whether `value` has the form of a digest."""
    return _DIGEST.fullmatch(value) is not None


def is_identifier(value: str) -> bool:
    """Whether `value` has the form of an identifier."""
    return _NAME.fullmatch(value) is not None


def _digest(value: str) -> str:
    if not is_digest(value):
        raise ValueError("a digest is 32 lower-case hexadecimal digits")
    return value


def _identifier(value: str) -> str:
    if not is_identifier(value):
        raise ValueError("an identifier is 1 to 128 of A-Z a-z 0-9 _ . : -")
    return value


Tensor = InstanceOf[WireTensor]
Digest = Annotated[str, AfterValidator(_digest)]
Identifier = Annotated[str, AfterValidator(_identifier)]
Text = Annotated[str, Field(max_length=65536)]
