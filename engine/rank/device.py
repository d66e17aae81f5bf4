"""The rank's device: which one, how much of it is free, and how full it has been."""

from __future__ import annotations

import gc
import sys

import psutil
import torch

from ...protocol.errors import EngineStartError
from . import allocator


def choose_device(wanted: str, rank: int) -> torch.device:
    """`auto` and `cuda` give rank r the CUDA device r, `auto` without CUDA the CPU.

    Raises EngineStartError when the device that was asked for is not there.
    """
    if wanted == "cpu" or (wanted == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    index = int(wanted.partition(":")[2] or rank)
    if index >= torch.cuda.device_count():
        raise EngineStartError(
            f"There is no CUDA device {index}: torch {torch.__version__} sees {torch.cuda.device_count()}.",
            hint="Choose another --device, or install a torch with CUDA in the engine's Python.",
        )
    device = torch.device("cuda", index)
    torch.cuda.set_device(device)
    return device


def describe(device: torch.device) -> str:
    """The device as the report shows it."""
    if device.type == "cuda":
        return f"{device} {torch.cuda.get_device_name(device)}"
    return str(device)


def free_bytes(device: torch.device) -> int:
    """Bytes a new model may take: free device memory and what torch holds idle, or available host memory."""
    if device.type == "cuda":
        idle = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + idle
    return int(psutil.virtual_memory().available)


def reset_peak(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def peak_bytes(device: torch.device) -> int:
    """On CUDA the most torch had allocated since `reset_peak`; on the CPU the process's largest size ever."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    if sys.platform == "win32":
        return int(psutil.Process().memory_info().peak_wset)
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def release_memory(device: torch.device) -> None:
    """Give back what nothing refers to any more, so that other processes can have it."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
    allocator.trim()
