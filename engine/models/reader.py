"""Bytes from a file to tensors, a piece at a time.

Pieces are read, not mapped: a file that is cut short while it loads is then an error instead of a bus error,
and no page of it is charged to the process. A piece that needs no conversion goes straight to its tensor.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import BinaryIO

import torch

from ...protocol.errors import CheckpointError
from .header import Header, TensorInfo

Progress = Callable[[int, int], None]
PIECE = 32 << 20
DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "F8_E8M0": torch.float8_e8m0fnu,
    "I8": torch.int8,
}
"""Dtypes whose elements torch has; anything else is read as bytes."""


class Reader:
    """Reads the file of `header` to `device`. `progress(done, total)` is called after every piece."""

    def __init__(
        self, file: BinaryIO, header: Header, device: torch.device, progress: Progress | None, total: int
    ) -> None:
        self.device = device
        self._file, self._header = file, header
        self._progress, self._done, self._total = progress, 0, total
        pinned = device.type == "cuda"
        self._staging = torch.empty(min(PIECE, max(1, total)), dtype=torch.uint8, pin_memory=pinned)

    def fill(
        self, target: torch.Tensor, stored: str, offset: int, through: torch.dtype | None = None
    ) -> None:
        """Fill contiguous `target` from bytes at `offset` of the weights, stored as `stored`.

        through: a dtype to round the values to on their way.
        """
        dtype = DTYPES[stored]
        self._seek(offset)
        for piece in torch.split(target.reshape(-1), max(1, len(self._staging) // dtype.itemsize)):
            count = piece.numel() * dtype.itemsize
            direct = piece.device.type == "cpu" and piece.dtype == dtype and through is None
            landing = piece.view(torch.uint8) if direct else self._staging[:count]
            self._read(landing)
            if not direct:
                values = landing.view(dtype)
                piece.copy_(values if through is None else values.to(through))
            self.advance(count)

    def tensor(self, info: TensorInfo, rows: tuple[int, int] | None = None) -> torch.Tensor:
        """Rows [first, stop) of a tensor, or all, as they are stored (bytes where torch has no such dtype).

        Rows of bytes have the shape (rows, bytes). Not counted as progress.
        """
        first, stop = rows or (0, info.shape[0] if info.shape else 1)
        height = info.shape[0] if info.shape else 1
        row_bytes = (info.end - info.start) // max(1, height)
        raw = torch.empty((stop - first) * row_bytes, dtype=torch.uint8)
        self._seek(info.start + first * row_bytes)
        self._read(raw)
        raw = raw.to(self.device)
        if info.dtype not in DTYPES:
            return raw.reshape(stop - first, -1)
        return (
            raw.view(DTYPES[info.dtype]).reshape(stop - first, *info.shape[1:])
            if info.shape
            else raw.view(DTYPES[info.dtype]).reshape(())
        )

    def advance(self, count: int) -> None:
        """Count bytes as done; what `progress` raises ends the load."""
        self._done += count
        if self._progress:
            self._progress(self._done, self._total)

    def _seek(self, offset: int) -> None:
        self._file.seek(self._header.data_start + offset)

    def _read(self, landing: torch.Tensor) -> None:
        buffer = landing.numpy().data
        while len(buffer):
            try:
                count = self._file.readinto(buffer)  # type: ignore[attr-defined]
            except OSError as error:
                raise CheckpointError(
                    f"{self._header.path}: reading failed ({error.strerror}).", hint="Check the disk."
                ) from error
            if not count:
                raise CheckpointError(
                    f"{self._header.path}: became shorter while it was read.",
                    hint="Load it again once complete.",
                )
            buffer = buffer[count:]
