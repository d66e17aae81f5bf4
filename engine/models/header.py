"""The header of a model file: names, shapes and places of its tensors, read without touching a weight.

Format: https://huggingface.co/docs/safetensors (8 bytes of length, JSON, then the data without holes); GGUF
has a reader of its own.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import BinaryIO, TypeGuard

from ...protocol.errors import CheckpointError, ModelNotFoundError, UnsupportedModelError
from .file_header import Header, TensorInfo
from .file_header import damaged as _damaged
from .gguf_header import MAGIC, read_gguf_header

__all__ = ["BITS", "Header", "TensorInfo", "read_header"]

LENGTH_BYTES = 8
MAX_HEADER_BYTES = 100_000_000
BITS = {
    "BOOL": 8, "U8": 8, "I8": 8, "U16": 16, "I16": 16, "U32": 32, "I32": 32, "U64": 64, "I64": 64,
    "F16": 16, "BF16": 16, "F32": 32, "F64": 64, "C64": 64,
    "F8_E4M3": 8, "F8_E5M2": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8, "F8_E8M0": 8,
    "F6_E2M3": 6, "F6_E3M2": 6, "F4": 4,
}  # fmt: skip
FOREIGN = (
    (b"PK\x03\x04", "a zip archive, probably a pickled .pt or .ckpt file; those are never opened"),
    (b"\x80\x02", "a pickle file; those are never opened"),
    (b"\x80\x04", "a pickle file; those are never opened"),
)
PAGES = (b"<", b"version https://git-lfs")


def read_header(path: Path) -> Header:
    """Read and check the header of `path`; no byte of a weight is read.

    Raises ModelNotFoundError, CheckpointError (damaged) or UnsupportedModelError (pickle).
    """
    path = Path(path)
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            if _is_gguf(file):
                return read_gguf_header(path, file, size)
            raw = _read_json_bytes(path, file, size)
    except FileNotFoundError as error:
        raise ModelNotFoundError(
            f"{path}: no such file.", hint="Check the name and the model folders."
        ) from error
    except OSError as error:
        raise CheckpointError(
            f"{path}: cannot be read ({error.strerror}).", hint="Check its rights."
        ) from error
    entries = _parse(path, raw)
    metadata = _metadata(path, entries.pop("__metadata__", {}))
    tensors = {name: _tensor(path, name, entry) for name, entry in entries.items()}
    data_start = LENGTH_BYTES + len(raw)
    _check_layout(path, tensors, size - data_start)
    digest = hashlib.blake2b(raw, digest_size=16).hexdigest()
    return Header(path, size, data_start, MappingProxyType(tensors), MappingProxyType(metadata), digest)


def _is_gguf(file: BinaryIO) -> bool:
    """Whether the file, left at its start, has the magic there. The length of JSON may look like it."""
    file.seek(0)
    start = file.read(LENGTH_BYTES + 1)
    file.seek(0)
    return start.startswith(MAGIC) and start[LENGTH_BYTES:] != b"{"


def _read_json_bytes(path: Path, file: BinaryIO, size: int) -> bytes:
    file.seek(0)
    start = file.read(64)
    prefix = start[:LENGTH_BYTES]
    if start[LENGTH_BYTES:][:1] != b"{":  # else a length may look like any magic number
        _check_not_foreign(path, start)
    if len(prefix) < LENGTH_BYTES:
        _damaged(path, f"is only {size} bytes long, too short for a safetensors file")
    length = int.from_bytes(prefix, "little")
    if length > MAX_HEADER_BYTES:
        _damaged(path, f"is not a safetensors file (it would have a header of {length} bytes)")
    if length + LENGTH_BYTES > size:
        _damaged(
            path,
            f"is cut short inside its header ({size} bytes, the header alone needs {length + LENGTH_BYTES})",
        )
    file.seek(LENGTH_BYTES)
    return file.read(length)


def _check_not_foreign(path: Path, start: bytes) -> None:
    for magic, what in FOREIGN:
        if start.startswith(magic):
            raise UnsupportedModelError(f"{path}: is {what}.", hint="Use the model's .safetensors file.")
    if start.lstrip().startswith(PAGES):
        _damaged(path, "is a web page or a pointer, not a model; the download went wrong")


def _parse(path: Path, raw: bytes) -> dict[str, object]:
    try:
        entries = json.loads(raw.decode("utf-8"), object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        _damaged(path, f"has a header that is not valid JSON ({error})")
    if not isinstance(entries, dict):
        _damaged(path, "has a header that is not a JSON object")
    return entries


def _unique(pairs: Iterable[tuple[str, object]]) -> dict[str, object]:
    result: dict[str, object] = {}
    for key, value in pairs:
        if key in result:
            raise ValueError(f"{key!r} appears twice")
        result[key] = value
    return result


def _metadata(path: Path, entry: object) -> dict[str, str]:
    if not isinstance(entry, dict) or not all(isinstance(value, str) for value in entry.values()):
        _damaged(path, "has metadata that is not a table of strings")
    return entry


def _tensor(path: Path, name: str, entry: object) -> TensorInfo:
    if not isinstance(entry, dict):
        _damaged(path, f"describes tensor {name!r} with something that is not an object")
    dtype, shape, offsets = entry.get("dtype"), entry.get("shape"), entry.get("data_offsets")
    if not isinstance(dtype, str) or dtype not in BITS:
        _damaged(path, f"stores tensor {name!r} in the unknown dtype {dtype!r}")
    if not _naturals(shape):
        _damaged(path, f"gives tensor {name!r} the impossible shape {shape!r}")
    if not _naturals(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        _damaged(path, f"gives tensor {name!r} the impossible offsets {offsets!r}")
    info = TensorInfo(dtype, tuple(shape), *offsets)
    if (info.end - info.start) * 8 != math.prod(info.shape) * BITS[dtype]:
        _damaged(
            path,
            f"gives tensor {name!r} {info.end - info.start} bytes, which {dtype}{list(shape)} does not fill",
        )
    return info


def _naturals(value: object) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(type(item) is int and item >= 0 for item in value)


def _check_layout(path: Path, tensors: Mapping[str, TensorInfo], data_size: int) -> None:
    end = 0
    for name, info in sorted(tensors.items(), key=lambda item: (item[1].start, item[1].end)):
        if info.start != end:
            fault = "overlaps its neighbour" if info.start < end else "is preceded by a hole"
            _damaged(
                path, f"is laid out wrongly: tensor {name!r} {fault} (starts at {info.start}, expected {end})"
            )
        end = info.end
    if end > data_size:
        _damaged(path, f"is cut short: {end - data_size} of {end} bytes of weights are missing")
    if end < data_size:
        _damaged(path, f"has {data_size - end} bytes after its last tensor")
