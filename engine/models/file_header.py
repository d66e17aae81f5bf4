"""What any model file says about itself before its weights, whatever its format."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from ...protocol.errors import CheckpointError

DOWNLOAD_AGAIN = "Download the file again and compare its size with the one its publisher states."


@dataclass(frozen=True)
class TensorInfo:
    """One tensor of a file: dtype as its format spells it, and its bytes [start, end) after `data_start`."""

    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int


@dataclass(frozen=True)
class Header:
    """What a file says about itself. `digest`: blake2b (16 bytes, hex) of the header as it is stored."""

    path: Path
    size: int
    data_start: int
    tensors: Mapping[str, TensorInfo]
    metadata: Mapping[str, str]
    digest: str


def damaged(path: Path, what: str, hint: str = DOWNLOAD_AGAIN) -> NoReturn:
    """Raise the CheckpointError of a file that `what` is wrong with."""
    raise CheckpointError(f"{path}: {what}.", hint=hint)
