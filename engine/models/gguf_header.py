"""The header of a GGUF file, read without touching a weight.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. Image models keep a shape that GGUF cannot
express (more than four dimensions) under `comfy.gguf.orig_shape.<tensor>`.
"""

from __future__ import annotations

import hashlib
import math
import struct
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import BinaryIO

from .file_header import Header, TensorInfo, damaged

MAGIC = b"GGUF"
VERSIONS = (2, 3)
MAX_HEADER_BYTES = 100_000_000
MAX_DIMENSIONS = 4
ORIGINAL_SHAPE = "comfy.gguf.orig_shape."
SCALARS = {
    0: "<B",
    1: "<b",
    2: "<H",
    3: "<h",
    4: "<I",
    5: "<i",
    6: "<f",
    7: "<?",
    10: "<Q",
    11: "<q",
    12: "<d",
}
STRING, ARRAY = 8, 9
TYPES: Mapping[int, tuple[str, int, int]] = {
    0: ("F32", 1, 4), 1: ("F16", 1, 2), 2: ("Q4_0", 32, 18), 3: ("Q4_1", 32, 20), 6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24), 8: ("Q8_0", 32, 34), 10: ("Q2_K", 256, 84), 11: ("Q3_K", 256, 110),
    12: ("Q4_K", 256, 144), 13: ("Q5_K", 256, 176), 14: ("Q6_K", 256, 210), 20: ("IQ4_NL", 32, 18),
    23: ("IQ4_XS", 256, 136), 24: ("I8", 1, 1), 25: ("I16", 1, 2), 26: ("I32", 1, 4), 27: ("I64", 1, 8),
    28: ("F64", 1, 8), 30: ("BF16", 1, 2),
}  # fmt: skip
"""GGUF's number of a type: its name, the values in one block, the bytes of one block."""
BLOCKS = {name: (values, size) for name, values, size in TYPES.values() if values > 1}


def read_gguf_header(path: Path, file: BinaryIO, size: int) -> Header:
    """Read and check the header of `file`, whose first bytes are the magic. Raises CheckpointError."""
    reader = _Reader(path, file)
    version, count, pairs = reader.scalar("<I"), reader.scalar("<Q"), reader.scalar("<Q")
    if version not in VERSIONS:
        damaged(path, f"is GGUF of version {version}; versions {VERSIONS} are read", "Convert it again.")
    fields = dict(reader.pair() for _ in range(int(pairs)))
    entries = [reader.tensor() for _ in range(int(count))]
    alignment = fields.get("general.alignment", 32)
    if not isinstance(alignment, int) or alignment <= 0:
        damaged(path, f"asks for the impossible alignment {alignment!r}")
    data_start = -(-reader.position // alignment) * alignment
    tensors: dict[str, TensorInfo] = {}
    for name, info in entries:
        if name in tensors:
            damaged(path, f"holds tensor {name!r} twice")
        tensors[name] = _original_shape(path, name, info, fields)
    _check_layout(path, tensors, size - data_start, alignment)
    metadata = {key: str(value) for key, value in fields.items() if isinstance(value, str | int | float)}
    return Header(
        path, size, data_start, MappingProxyType(tensors), MappingProxyType(metadata), reader.digest()
    )


class _Reader:
    """Little-endian values one after another; `digest` covers all bytes so far, the magic too."""

    def __init__(self, path: Path, file: BinaryIO) -> None:
        self._path, self._file = path, file
        self._digest = hashlib.blake2b(digest_size=16)
        self.position = 0
        self.take(len(MAGIC))

    def take(self, count: int) -> bytes:
        if self.position + count > MAX_HEADER_BYTES:
            damaged(self._path, f"has a header of more than {MAX_HEADER_BYTES} bytes")
        raw = self._file.read(count)
        if len(raw) < count:
            damaged(self._path, f"is cut short inside its header ({self.position + len(raw)} bytes)")
        self.position += count
        self._digest.update(raw)
        return raw

    def digest(self) -> str:
        return self._digest.hexdigest()

    def scalar(self, form: str) -> int | float | bool:
        value: int | float | bool = struct.unpack(form, self.take(struct.calcsize(form)))[0]
        return value

    def text(self) -> str:
        raw = self.take(int(self.scalar("<Q")))
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError:
            damaged(self._path, f"has a name that is not text: {raw[:40]!r}")

    def value(self, kind: int) -> object:
        if kind == STRING:
            return self.text()
        if kind == ARRAY:
            inner, count = int(self.scalar("<I")), int(self.scalar("<Q"))
            if inner == ARRAY:
                damaged(self._path, "has a list of lists among its fields")
            return [self.value(inner) for _ in range(count)]
        if kind not in SCALARS:
            damaged(self._path, f"has a field of the unknown type {kind}")
        return self.scalar(SCALARS[kind])

    def pair(self) -> tuple[str, object]:
        return self.text(), self.value(int(self.scalar("<I")))

    def tensor(self) -> tuple[str, TensorInfo]:
        name, dimensions = self.text(), int(self.scalar("<I"))
        if dimensions > MAX_DIMENSIONS:
            damaged(self._path, f"gives tensor {name!r} {dimensions} dimensions")
        shape = tuple(int(self.scalar("<Q")) for _ in range(dimensions))[::-1]
        kind, start = int(self.scalar("<I")), int(self.scalar("<Q"))
        if kind not in TYPES:
            damaged(
                self._path,
                f"stores tensor {name!r} in the GGUF type {kind}, which is not known here",
                f"Use a file of one of these types: {', '.join(BLOCKS)}.",
            )
        dtype, values, size = TYPES[kind]
        if math.prod(shape) % values or (values > 1 and shape[-1:] and shape[-1] % values):
            damaged(self._path, f"gives tensor {name!r} the shape {list(shape)}, which {dtype} does not fill")
        return name, TensorInfo(dtype, shape, start, start + math.prod(shape) // values * size)


def _original_shape(path: Path, name: str, info: TensorInfo, fields: Mapping[str, object]) -> TensorInfo:
    shape = fields.get(ORIGINAL_SHAPE + name)
    if shape is None:
        return info
    if not isinstance(shape, list) or not all(isinstance(size, int) and size > 0 for size in shape):
        damaged(path, f"gives tensor {name!r} the impossible original shape {shape!r}")
    if math.prod(shape) != math.prod(info.shape):
        damaged(
            path, f"gives tensor {name!r} the original shape {shape}, which {list(info.shape)} does not fill"
        )
    return TensorInfo(info.dtype, tuple(shape), info.start, info.end)


def _check_layout(path: Path, tensors: Mapping[str, TensorInfo], data_size: int, alignment: int) -> None:
    end = 0
    for name, info in sorted(tensors.items(), key=lambda item: (item[1].start, item[1].end)):
        expected = -(-end // alignment) * alignment
        if info.start != expected:
            fault = "overlaps its neighbour" if info.start < expected else "is preceded by a hole"
            damaged(
                path, f"is laid out wrongly: tensor {name!r} {fault} (at {info.start}, expected {expected})"
            )
        end = info.end
    if end > data_size:
        damaged(path, f"is cut short: {end - max(0, data_size)} of {end} bytes of weights are missing")
    if data_size - end >= alignment:
        damaged(path, f"has {data_size - end} bytes after its last tensor")
