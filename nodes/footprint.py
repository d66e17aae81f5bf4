"""How much of which device a model takes in an engine."""

from __future__ import annotations

from math import prod

import torch

from ..engine.models.header import Header
from ..protocol.torch import device_of
from .session import Session

ITEM_SIZES = {"float32": 4, "bfloat16": 2, "float16": 2}


def bytes_at(header: Header, dtype: str) -> int:
    """Bytes of the file's weights at `dtype`; for "auto", as they are stored."""
    if dtype not in ITEM_SIZES:
        return sum(info.end - info.start for info in header.tensors.values())
    return ITEM_SIZES[dtype] * sum(prod(info.shape) for info in header.tensors.values())


def computes_on(session: Session, device: torch.device) -> bool:
    """Whether the engine computes on `device` of this machine, which ComfyUI manages the memory of."""
    engine = device_of(session.welcome.device)
    if device.type == "cpu" or engine.type != device.type or not session.on_this_machine:
        return False
    return (engine.index or 0) == (device.index or 0)
