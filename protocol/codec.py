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
from .packing import BodyPacker, BodyReader, read_tensors
from .transport import Frame, Placer, SegmentOpener
from .version import PROTOCOL_VERSION, compatible

_VERSION = r"[0-9]{1,5}\.[0-9]{1,5}"
_NAME = r"[A-Za-z0-9_.:-]{1,128}"
#: Version, type, id and session, a line each: one match instead of four on the way of every message.
_HEAD = re.compile(rf"{_VERSION}\n{_NAME}\n(?:{_NAME})?\n(?:{_NAME})?")


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


class _Header(NamedTuple):
    peek: Peek
    body: dict[str, Any]
    tensors: list[Any]


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
        raw = msgpack.packb(header)
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
    header = _read_header(frames, limits)
    peeked = header.peek
    if not compatible(PROTOCOL_VERSION, peeked.version):
        raise VersionError(
            f"the peer speaks protocol {peeked.version}, this side {PROTOCOL_VERSION}",
            hint="Update the older of the two installations.",
        )
    record = MESSAGES.get(peeked.type)
    if record is None:
        raise ProtocolError(f"unknown message type {clip(peeked.type)!r}")
    views = [_row(frame) for frame in frames[1:]]
    tensors = read_tensors(header.tensors, views, opener, limits)
    body = BodyReader(tensors, limits).read(header.body)
    return Envelope(_validate(record, body), peeked.id, peeked.session)


def peek(frames: Sequence[Frame], limits: WireLimits = DEFAULT) -> Peek:
    """Type, id and session of a message of any version and any type; ProtocolError when there are none."""
    return _read_header(frames, limits).peek


def _row(frame: Frame) -> memoryview:
    view = memoryview(frame)
    return view if view.format == "B" and view.ndim == 1 else memoryview(view.cast("B"))


def _validate(record: type[Message], body: dict[str, Any]) -> Message:
    try:
        return record.model_validate(body, strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        where = ".".join(clip(part, 40) for part in first["loc"][:8])
        raise ProtocolError(f"{record.type}: {where}: {clip(first['msg'])}") from None


def _read_header(frames: Sequence[Frame], limits: WireLimits) -> _Header:
    if not frames:
        raise ProtocolError("a message has at least one frame")
    if len(frames) > limits.tensors + 1:
        raise LimitError(f"a message has {len(frames)} frames; at most {limits.tensors + 1} are allowed")
    top = _unpack(frames[0], limits)
    if not isinstance(top, dict):
        raise ProtocolError("the header must be a map")
    head = _head(top)
    body, tensors = top.get("body"), top.get("tensors")
    if not isinstance(body, dict) or not isinstance(tensors, list):
        raise ProtocolError("the header needs a map 'body' and a list 'tensors'")
    return _Header(head, body, tensors)


def _head(top: dict[str, Any]) -> Peek:
    kind, request, session, version = map(top.get, ("type", "id", "session", "outboard"))
    if not (isinstance(kind, str) and isinstance(request, str)):
        raise ProtocolError("the header needs texts 'type' and 'id'")
    if not (isinstance(session, str) and isinstance(version, str)):
        raise ProtocolError("the header needs texts 'session' and 'outboard'")
    head = Peek(kind, request, session, version)
    if not _HEAD.fullmatch(f"{head.version}\n{head.type}\n{head.id}\n{head.session}"):
        raise ProtocolError(f"no version, type, id and session of a message: {clip(tuple(head))}")
    return head


def _unpack(frame: Frame, limits: WireLimits) -> Any:
    size = memoryview(frame).nbytes
    if size > limits.header:
        raise LimitError(f"a header is {size} bytes; at most {limits.header} are allowed")
    try:
        return msgpack.unpackb(
            frame,
            raw=False,
            use_list=True,
            strict_map_key=True,
            max_str_len=limits.text,
            max_bin_len=0,
            max_ext_len=0,
            max_array_len=limits.items,
            max_map_len=limits.items,
        )
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise ProtocolError(f"the header is no plain msgpack map: {clip(error)}") from None
