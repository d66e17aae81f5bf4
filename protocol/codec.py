"""Messages to frames and back: one msgpack header, then the raw bytes of each tensor. See SPEC.md, Envelope.

Decoding trusts nothing: whatever the bytes are, the outcome is an Envelope or a ProtocolError.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgpack
from pydantic import ValidationError

from .errors import LimitError, ProtocolError, VersionError
from .limits import DEFAULT, WireLimits, clip
from .messages import MESSAGES, Message
from .messages.base import is_identifier
from .packing import BodyPacker, BodyReader, read_tensors
from .transport import Frame, Placer, SegmentOpener
from .version import PROTOCOL_VERSION, compatible

_VERSION = re.compile(r"[0-9]{1,5}\.[0-9]{1,5}")
#: A header is small; msgpack's own first buffer would be mapped and unmapped for every message.
_BUFFER = 4096


class Envelope(NamedTuple):
    """A message, the request it belongs to, and the session (empty before `welcome`)."""

    message: Message
    id: str
    session: str = ""


class Peek(NamedTuple):
    """What a header says about a message, its body unread. `version` is the sender's protocol."""

    type: str
    id: str
    session: str
    version: str


def encode(envelope: Envelope, placer: Placer | None = None, limits: WireLimits = DEFAULT) -> list[Frame]:
    """Frames of a message: the header, then each tensor that `placer` did not put into shared memory.

    Tensor frames are views of the tensors' own memory. Raises ProtocolError for what cannot be sent.
    """
    packer = BodyPacker(placer, limits)
    header = {
        "outboard": PROTOCOL_VERSION,
        "type": envelope.message.type,
        "id": envelope.id,
        "session": envelope.session,
        "body": packer.pack(envelope.message),
        "tensors": packer.tensors,
    }
    try:
        raw = msgpack.packb(header, buf_size=_BUFFER)
    except (ValueError, OverflowError) as error:
        raise ProtocolError(f"{envelope.message.type} cannot be sent: {clip(error)}") from error
    if len(raw) > limits.header:
        raise LimitError(
            f"the header of {envelope.message.type} is {len(raw)} bytes; at most {limits.header} are allowed"
        )
    return [raw, *packer.frames]


def decode(
    frames: Sequence[Frame], *, opener: SegmentOpener | None = None, limits: WireLimits = DEFAULT
) -> Envelope:
    """The message in `frames`. Its tensors are views of the frames, or of what `opener` opens.

    Raises ProtocolError (VersionError, LimitError) for anything SPEC.md does not allow.
    """
    top = _read_header(frames, limits)
    kind, request, session, version = _head(top)
    if version != PROTOCOL_VERSION and not compatible(PROTOCOL_VERSION, version):
        raise VersionError(
            f"the peer speaks protocol {version}, this side {PROTOCOL_VERSION}",
            hint="Update the older of the two installations.",
        )
    record = MESSAGES.get(kind)
    if record is None:
        raise ProtocolError(f"unknown message type {clip(kind)!r}")
    tensors = read_tensors(top["tensors"], [_row(frame) for frame in frames[1:]], opener, limits)
    body = BodyReader(tensors, limits).read(top["body"])
    return Envelope(_validate(record, body), request, session)


def peek(frames: Sequence[Frame], limits: WireLimits = DEFAULT) -> Peek:
    """Type, id and session of a message of any version and any type; ProtocolError when there are none."""
    return Peek(*_head(_read_header(frames, limits)))


def _row(frame: Frame) -> memoryview:
    view = frame if isinstance(frame, memoryview) else memoryview(frame)
    return view if view.format == "B" and view.ndim == 1 else memoryview(view.cast("B"))


def _validate(record: type[Message], body: dict[str, Any]) -> Message:
    try:
        message: Message = record.__pydantic_validator__.validate_python(body, strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        where = ".".join(clip(part, 40) for part in first["loc"][:8])
        raise ProtocolError(f"{record.type}: {where}: {clip(first['msg'])}") from None
    return message


def _read_header(frames: Sequence[Frame], limits: WireLimits) -> dict[str, Any]:
    """The header's map, with a map as its body and a list of tensors; `_head` checks the rest."""
    if not frames:
        raise ProtocolError("a message has at least one frame")
    if len(frames) > limits.tensors + 1:
        raise LimitError(f"a message has {len(frames)} frames; at most {limits.tensors + 1} are allowed")
    top = _unpack(frames[0], limits)
    if not isinstance(top, dict):
        raise ProtocolError("the header must be a map")
    if not isinstance(top.get("body"), dict) or not isinstance(top.get("tensors"), list):
        raise ProtocolError("the header needs a map 'body' and a list 'tensors'")
    return top


def _head(top: dict[str, Any]) -> tuple[str, str, str, str]:
    """Type, id, session and version."""
    kind, request = top.get("type"), top.get("id")
    session, version = top.get("session"), top.get("outboard")
    if not (isinstance(kind, str) and isinstance(request, str)):
        raise ProtocolError("the header needs texts 'type' and 'id'")
    if not (isinstance(session, str) and isinstance(version, str)):
        raise ProtocolError("the header needs texts 'session' and 'outboard'")
    known = kind in MESSAGES and version == PROTOCOL_VERSION
    if not (known or (_VERSION.fullmatch(version) and is_identifier(kind))):
        raise ProtocolError(f"no version and type of a message: {clip((version, kind))}")
    if not (_is_name(request) and _is_name(session)):
        raise ProtocolError(f"no id and session of a message: {clip((request, session))}")
    return kind, request, session, version


def _is_name(text: str) -> bool:
    """Whether `text` is empty or a name; nearly all are alphanumeric, which is told without the pattern."""
    return (text.isalnum() and text.isascii() and len(text) <= 128) or not text or is_identifier(text)


def _unpack(frame: Frame, limits: WireLimits) -> Any:
    size = memoryview(frame).nbytes
    if size > limits.header:
        raise LimitError(f"a header is {size} bytes; at most {limits.header} are allowed")
    try:
        return msgpack.unpackb(
            frame,
            max_str_len=limits.text,
            max_bin_len=0,
            max_ext_len=0,
            max_array_len=limits.items,
            max_map_len=limits.items,
        )
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise ProtocolError(f"the header is no plain msgpack map: {clip(error)}") from None
