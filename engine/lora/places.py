"""Where in the module the rows of a file's weight are."""

from __future__ import annotations

from typing import cast

import torch
from torch import nn

from ..models.plan import Read
from ..models.quant.linear import QuantLinear


def rows_of(module: nn.Module, read: Read) -> torch.Tensor:
    """The rows of the parameter that `read` fills, sharing its memory."""
    owner, _, name = read.target.rpartition(".")
    tensor = cast(torch.Tensor, getattr(module.get_submodule(owner), name)).detach()
    return tensor[read.target_first :][: read.rows] if tensor.ndim else tensor


def kept_layer(module: nn.Module, read: Read) -> QuantLinear | None:
    """The layer that keeps the weight `read` fills in few bits, if one does."""
    owner, _, name = read.target.rpartition(".")
    part = module.get_submodule(owner)
    return part if name == "weight" and isinstance(part, QuantLinear) else None


def part_of(whole: torch.Tensor, read: Read) -> torch.Tensor:
    """The rows of a weight in the file's layout that `read` reads."""
    return whole[read.first :][: read.rows] if whole.ndim else whole
