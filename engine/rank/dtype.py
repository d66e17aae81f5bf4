"""Which dtype a model computes in."""

from __future__ import annotations

from collections import Counter

import torch

from ..models.header import Header

_BY_NAME = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_STORED = {"BF16": torch.bfloat16, "F16": torch.float16}


def compute_dtype(wanted: str, header: Header, device: torch.device) -> torch.dtype:
    """The dtype called `wanted`; for "auto", what ComfyUI's rules give on such a device.

    On the CPU: float32. On CUDA: the dtype most of the file is stored in when that is bfloat16 or float16,
    and bfloat16 for a file in float32 or a format torch cannot compute in.
    """
    if wanted != "auto":
        return _BY_NAME[wanted]
    if device.type == "cpu":
        return torch.float32
    return _STORED.get(_main_dtype(header), torch.bfloat16)


def dtype_name(dtype: torch.dtype) -> str:
    """`torch.bfloat16` -> "bfloat16"."""
    return str(dtype).removeprefix("torch.")


def _main_dtype(header: Header) -> str:
    sizes: Counter[str] = Counter()
    for tensor in header.tensors.values():
        sizes[tensor.dtype] += tensor.end - tensor.start
    return max(sizes, key=sizes.__getitem__, default="")
