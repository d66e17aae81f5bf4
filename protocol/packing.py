"""Message bodies to and from plain msgpack values: tensors and blobs become references, the rest stays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite, prod
from typing import Any

from .errors import LimitError, ProtocolError
from .limits import WireLimits, clip
from .messages.base import Record, is_digest
from .tensors import flat
from .transport import Frame, Placer, SegmentOpener
from .values import ITEM_SIZES, Blob, Place, WireTensor

TENSOR, BLOB = "$tensor", "$blob"
_ALIGNMENT = 64
#: What crosses as it is.
_BARE = frozenset({str, int, bool, type(None)})


class BodyPacker:
    """Collects the tensors of one message while its body is turned into plain values."""

    def __init__(self, placer: Placer | None, limits: WireLimits) -> None:
        self.tensors: list[dict[str, Any]] = []
        self.frames: list[Frame] = []
        self._placer = placer
        self._limits = limits
        self._seen: dict[int, int] = {}

    def pack(self, value: Any, depth: int = 0) -> Any:
        """Return `value` as msgpack takes it; ProtocolError for what the wire does not carry."""
        kind = type(value)
        if kind in _BARE:
            return value
        if kind is WireTensor:
            return {TENSOR: self._tensor(value)}
        if isinstance(value, Blob):
            return {BLOB: value.digest}
        if isinstance(value, Record):
            self._check(depth + 1)
            # A record's own names need no check.
            return {
                name: item if type(item) in _BARE else self.pack(item, depth + 1)
                for name, item in vars(value).items()
            }
        if isinstance(value, Mapping):
            return self._map(value, depth + 1)
        if isinstance(value, list | tuple):
            self._check(depth + 1)
            return [self.pack(item, depth + 1) for item in value]
        return _plain(value)

    def _map(self, value: Mapping[str, Any], depth: int) -> dict[str, Any]:
        self._check(depth)
        for key in value:
            _check_key(key)
        return {key: self.pack(item, depth) for key, item in value.items()}

    def _check(self, depth: int) -> None:
        if depth > self._limits.depth:
            raise LimitError(f"the message nests deeper than {self._limits.depth} levels")

    def _tensor(self, tensor: WireTensor) -> int:
        index = self._seen.get(id(tensor))
        if index is not None:
            return index
        _check_size(tensor.nbytes, len(tensor.shape), self._limits)
        index = self._seen[id(tensor)] = len(self.tensors)
        entry: dict[str, Any] = {"dtype": tensor.dtype, "shape": list(tensor.shape)}
        place = self._placer(tensor) if self._placer and tensor.nbytes else None
        if place:
            entry |= {"segment": place.segment, "offset": place.offset}
            if tensor.same and place == tensor.place:
                entry["same"] = True
        else:
            self.frames.append(flat(tensor.data))
            entry["frame"] = len(self.frames)
        self.tensors.append(entry)
        return index


def _plain(value: Any) -> Any:
    """Floats, and subclasses of the plain types (numpy.float64, enums), as the plain type itself."""
    if isinstance(value, float):
        if not isfinite(value):
            raise ProtocolError(f"the number {value} cannot be sent; only finite numbers can")
        return float(value)
    for kind in (int, str):
        if isinstance(value, kind):
            return kind(value)
    raise ProtocolError(f"a {type(value).__module__}.{type(value).__qualname__} cannot be sent")


def _check_key(key: object) -> None:
    if not isinstance(key, str):
        raise ProtocolError(f"a map key must be text, not {clip(type(key).__name__)}")
    if key.startswith("$"):
        raise ProtocolError(f"the map key {clip(key)!r} is reserved: it begins with '$'")


def _check_size(nbytes: int, dimensions: int, limits: WireLimits) -> None:
    if dimensions > limits.dimensions:
        raise LimitError(f"a tensor has {dimensions} dimensions; at most {limits.dimensions} are allowed")
    if nbytes > limits.tensor:
        raise LimitError(f"a tensor needs {nbytes} bytes; at most {limits.tensor} are allowed")


class BodyReader:
    """Puts the tensors of one message back where its body refers to them."""

    def __init__(self, tensors: Sequence[WireTensor], limits: WireLimits) -> None:
        self._tensors = tensors
        self._limits = limits
        self._used: set[int] = set()

    def read(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Return the body with WireTensors and Blobs; every tensor must be referred to."""
        result = self._map(body, 1)
        if len(self._used) != len(self._tensors):
            raise ProtocolError(f"{len(self._tensors) - len(self._used)} tensors belong to no field")
        return result

    def _value(self, value: Any, depth: int) -> Any:
        kind = type(value)
        if kind in _BARE:
            return value
        if kind is dict:
            return self._reference(value) or self._map(value, depth + 1)
        if kind is list:
            self._check(depth + 1)
            return [self._value(item, depth + 1) for item in value]
        if kind is not float:
            raise ProtocolError(f"a {clip(kind.__name__)} has no place in a message")
        if not isfinite(value):
            raise ProtocolError("a number in the header is not finite")
        return value

    def _map(self, value: Mapping[Any, Any], depth: int) -> dict[str, Any]:
        self._check(depth)
        for key in value:
            if type(key) is not str or key[:1] == "$":
                _check_key(key)
        return {key: item if type(item) in _BARE else self._value(item, depth) for key, item in value.items()}

    def _check(self, depth: int) -> None:
        if depth > self._limits.depth:
            raise LimitError(f"the message nests deeper than {self._limits.depth} levels")

    def _reference(self, value: dict[Any, Any]) -> WireTensor | Blob | None:
        if TENSOR in value:
            index = value[TENSOR]
            if len(value) != 1 or type(index) is not int or not 0 <= index < len(self._tensors):
                raise ProtocolError(f"{TENSOR} must be alone in its map and name one of the tensors")
            self._used.add(index)
            return self._tensors[index]
        if BLOB in value:
            name = value[BLOB]
            if len(value) != 1 or not isinstance(name, str) or not is_digest(name):
                raise ProtocolError(f"{BLOB} must be alone in its map and hold a digest")
            return Blob(name)
        return None


def read_tensors(
    entries: Sequence[Any], frames: Sequence[memoryview], opener: SegmentOpener | None, limits: WireLimits
) -> list[WireTensor]:
    """The tensors a header describes, as views of `frames` (those after the header) or of shared memory."""
    if not entries and not frames:
        return []
    if len(entries) > limits.tensors:
        raise LimitError(f"a message has {len(entries)} tensors; at most {limits.tensors} are allowed")
    left: list[memoryview | None] = list(frames)
    tensors = [_tensor(entry, left, opener, limits) for entry in entries]
    if left.count(None) != len(left):
        raise ProtocolError(f"{len(left) - left.count(None)} frames belong to no tensor")
    if sum(tensor.nbytes for tensor in tensors) > limits.message:
        raise LimitError(f"a message's tensors need more than {limits.message} bytes")
    return tensors


def _tensor(
    entry: Any, left: list[memoryview | None], opener: SegmentOpener | None, limits: WireLimits
) -> WireTensor:
    if not isinstance(entry, dict):
        raise ProtocolError("a tensor's entry must be a map")
    dtype, shape = entry.get("dtype"), entry.get("shape")
    if not isinstance(dtype, str) or dtype not in ITEM_SIZES:
        raise ProtocolError(f"tensor dtype {clip(dtype)!r} is not one of {', '.join(ITEM_SIZES)}")
    if not isinstance(shape, list):
        raise ProtocolError("a tensor's shape must be a list")
    for length in shape:
        if type(length) is not int or length < 0:
            raise ProtocolError("a tensor's shape must consist of non-negative integers")
    nbytes = prod(shape[: limits.dimensions]) * ITEM_SIZES[dtype]
    if nbytes > limits.tensor or len(shape) > limits.dimensions:
        _check_size(nbytes, len(shape), limits)
    if ("frame" in entry) == ("segment" in entry):
        raise ProtocolError("a tensor lies either in a frame or in a segment")
    if "frame" in entry:
        return WireTensor(dtype, tuple(shape), _frame(entry["frame"], left))
    data, same = _view(entry, nbytes, opener), entry.get("same", False)
    if type(same) is not bool:
        raise ProtocolError("'same' must be a boolean")
    return WireTensor(dtype, tuple(shape), data, Place(entry["segment"], entry["offset"]), same)


def _frame(index: Any, left: list[memoryview | None]) -> memoryview:
    """Take frame `index`, the first after the header being 1, out of those that are left."""
    view = left[index - 1] if type(index) is int and 0 < index <= len(left) else None
    if view is None:
        raise ProtocolError(f"a tensor names frame {clip(index)}, which is missing or taken")
    left[index - 1] = None
    return view


def _view(entry: Mapping[str, Any], nbytes: int, opener: SegmentOpener | None) -> memoryview:
    segment, offset = entry["segment"], entry.get("offset")
    if opener is None:
        raise ProtocolError("a tensor lies in shared memory, which this side did not offer")
    if not isinstance(segment, str) or type(offset) is not int or offset < 0 or offset % _ALIGNMENT:
        raise ProtocolError(f"a segment needs a name and an offset that is a multiple of {_ALIGNMENT}")
    return opener(segment, offset, nbytes)
