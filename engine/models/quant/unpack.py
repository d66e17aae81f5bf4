"""Values of any quantised weight, wherever its bytes are."""

from __future__ import annotations

import torch

from ..gguf_header import BLOCKS
from .blocks import block_values, unpacker
from .kitchen import Parts, layout_of, values
from .layer import Options


def require(name: str) -> None:
    """Raise UnsupportedModelError unless what unpacks format `name` is installed."""
    if name in BLOCKS:
        unpacker(name)
    else:
        layout_of(name)


def unpack(
    name: str, options: Options, packed: torch.Tensor, parts: Parts, dtype: torch.dtype
) -> torch.Tensor:
    """Rows of a weight stored in format `name` as values (rows, columns with padding) in `dtype`."""
    if name in BLOCKS:
        return block_values(name, packed, dtype)
    return values(name, options, packed, parts, dtype)
