"""The values of GGUF's blocks, through the functions of diffusers."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch

from ....protocol.errors import UnsupportedModelError
from ..gguf_header import BLOCKS

Unpack = Callable[[torch.Tensor, int, int, torch.dtype], torch.Tensor]


def block_values(name: str, packed: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Values (rows, columns) of `packed`, uint8 blocks (rows, bytes) of type `name`, through float32."""
    count, size = BLOCKS[name]
    found = unpacker(name)(packed.reshape(-1, size), count, size, torch.float32)
    return found.reshape(packed.shape[0], -1).to(dtype)


@cache
def unpacker(name: str) -> Unpack:
    try:
        # Not at the top: plain models load without it.
        from diffusers.quantizers.gguf.utils import dequantize_functions
    except ImportError as error:
        raise UnsupportedModelError(
            f"Weights in {name} need the gguf package, which cannot be imported ({error}).",
            hint="Run `outboard setup` again, or install gguf>=0.10 where the engine runs.",
        ) from error

    functions: dict[str, Unpack] = {kind.name: function for kind, function in dequantize_functions.items()}
    return functions[name]
