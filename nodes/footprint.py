"""How much of which device a model takes in an engine."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

import torch

from ..engine.models.registry import Detected
from ..protocol.torch import device_of
from .session import Session
from .weight_dtype import DEFAULT

ITEM_SIZES = {"float32": 4, "bfloat16": 2, "float16": 2}


def bytes_at(detected: Detected, dtype: str, weight_dtype: str, device: torch.device) -> int:
    """Bytes of the file's weights on `device`, the engine's, at `dtype`; for "auto", as they are stored.

    A CUDA device keeps quantised layers as they are stored, and matrices at a `weight_dtype` in fp8;
    elsewhere weights are unpacked.
    """
    return sum(_sizes(detected, ITEM_SIZES.get(dtype, 0), weight_dtype != DEFAULT, device.type == "cuda"))


def _sizes(detected: Detected, item: int, fp8: bool, keeps: bool) -> Iterator[int]:
    for name, info in detected.contents.items():
        layer = detected.layers.get(name)
        if fp8 and keeps and len(info.shape) == 2 and not (layer and layer.parts):
            yield prod(info.shape)
        elif layer and (keeps or not item):
            yield layer.nbytes
        else:
            yield item * prod(info.shape) or info.end - info.start


def computes_on(session: Session, device: torch.device) -> bool:
    """Whether the engine computes on `device` of this machine, which ComfyUI manages the memory of."""
    engine = device_of(session.welcome.device)
    if device.type == "cpu" or engine.type != device.type or not session.on_this_machine:
        return False
    return (engine.index or 0) == (device.index or 0)
