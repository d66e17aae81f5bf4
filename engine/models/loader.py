"""From a file on disk to a model in memory, one piece of one tensor at a time.

Pieces are read, not mapped: a file that is cut short while it loads is then an error instead of a bus error,
and no page of it is charged to the process. A piece that needs no conversion goes straight to its parameter.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import torch
from torch import nn

from ...protocol.errors import CheckpointError
from ..attention.seam import Attention
from .family import Config
from .header import Header, read_header
from .model import Model
from .plan import Read, make_plan, nbytes, state_shapes
from .registry import Detected, detect

Progress = Callable[[int, int], None]
PIECE = 32 << 20
DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


def load(
    path: Path,
    *,
    dtype: torch.dtype,
    device: torch.device,
    progress: Progress | None = None,
    config: Config | None = None,
    attention: Attention | None = None,
) -> Model:
    """Load a diffusion transformer in `dtype` on `device`.

    `progress(done, total)` is called in bytes after every piece; what it raises ends the load and frees all.
    `config` replaces the one inferred from the file; `attention` is shared by the models of a device.
    Host memory: 32 MB, and the model if on the host.
    Raises ModelError; keys and shapes are checked before the first weight is read.
    """
    return fill(inspect(path, config), dtype=dtype, device=device, progress=progress, attention=attention)


@dataclass(frozen=True, eq=False)
class Inspected:
    """A file that fits its family, the module it will fill (on the meta device), and the reads that do it."""

    header: Header
    detected: Detected
    module: nn.Module
    plan: Sequence[Read]

    def nbytes(self, dtype: torch.dtype) -> int:
        """Bytes of the loaded model."""
        return sum(shape.numel() for shape in state_shapes(self.module).values()) * dtype.itemsize


def inspect(path: Path, config: Config | None = None) -> Inspected:
    """Everything `load` checks, without reading a weight."""
    header = read_header(path)
    detected = detect(header, config)
    module = detected.family.build(detected.config)
    return Inspected(header, detected, module, make_plan(detected, state_shapes(module)))


def fill(
    inspected: Inspected,
    *,
    dtype: torch.dtype,
    device: torch.device,
    progress: Progress | None = None,
    attention: Attention | None = None,
) -> Model:
    """The rest of `load`, once per inspection: read the weights into the inspected module."""
    header, module, family = inspected.header, inspected.module, inspected.detected.family
    weights = _read_weights(header, inspected.plan, state_shapes(module), dtype, device, progress)
    module.load_state_dict(weights, strict=True, assign=True)
    assert not any(tensor.is_meta for tensor in (*module.parameters(), *module.buffers()))
    return Model(family, module.requires_grad_(False), dtype, device, header, attention)


def _read_weights(
    header: Header,
    plan: Sequence[Read],
    shapes: Mapping[str, torch.Size],
    dtype: torch.dtype,
    device: torch.device,
    progress: Progress | None,
) -> dict[str, torch.Tensor]:
    weights = {name: torch.empty(shape, dtype=dtype, device=device) for name, shape in shapes.items()}
    staging = torch.empty(min(PIECE, nbytes(plan)), dtype=torch.uint8, pin_memory=device.type == "cuda")
    done, total = 0, nbytes(plan)
    with header.path.open("rb", buffering=0) as file:
        for read in plan:
            rows = (
                weights[read.target][read.target_first :][: read.rows]
                if read.info.shape
                else weights[read.target]
            )
            file.seek(header.data_start + read.info.start + read.first * (read.nbytes // max(1, read.rows)))
            for piece in torch.split(rows.reshape(-1), _elements(read.info.dtype)):
                done += _fill(file, header.path, piece, DTYPES[read.info.dtype], staging)
                if progress:
                    progress(done, total)
    return weights


def _elements(stored: str) -> int:
    return PIECE // DTYPES[stored].itemsize


def _fill(file: BinaryIO, path: Path, piece: torch.Tensor, stored: torch.dtype, staging: torch.Tensor) -> int:
    """Read one flat piece; returns the bytes read."""
    count = piece.numel() * stored.itemsize
    direct = piece.device.type == "cpu" and piece.dtype == stored
    landing = piece.view(torch.uint8) if direct else staging[:count]
    _read_exactly(file, path, landing.numpy().data)
    if not direct:
        piece.copy_(landing.view(stored))
    return count


def _read_exactly(file: BinaryIO, path: Path, buffer: memoryview) -> None:
    while len(buffer):
        try:
            read = file.readinto(buffer)  # type: ignore[attr-defined]
        except OSError as error:
            raise CheckpointError(
                f"{path}: reading failed ({error.strerror}).", hint="Check the disk."
            ) from error
        if not read:
            raise CheckpointError(
                f"{path}: became shorter while it was read.", hint="Load it again once complete."
            )
        buffer = buffer[read:]
