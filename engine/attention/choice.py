"""Which kernel serves attention of a given size: measured once, at the first call, and then kept."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from time import perf_counter
from typing import NamedTuple

import torch

from .kernels import FUSED, Kernel, kernels_of

REPEATS = 3
#: Queries that are measured with; all heads and keys are.
QUERIES = 512
#: A kernel replaces the preferred one only when it takes less than this share of its time: what is as good as
#: even must not be decided by chance, since kernels round differently.
MARGIN = 0.85
#: After its first call a kernel this many times slower than the best is not measured further.
HOPELESS = 3.0


class Size(NamedTuple):
    """What a choice depends on; numbers of tokens count by their power of two."""

    device: torch.device
    dtype: torch.dtype
    heads: int
    width: int
    queries: int
    keys: int

    @classmethod
    def of(cls, query: torch.Tensor, key: torch.Tensor) -> Size:
        rows, heads, tokens, width = query.shape
        lengths = tokens.bit_length(), key.shape[2].bit_length()
        return cls(query.device, query.dtype, rows * heads, width, *lengths)


class Choice:
    """The kernels chosen so far, by size."""

    def __init__(self) -> None:
        self.names: dict[Size, str] = {}
        self._kernels: dict[Size, Kernel] = {}

    def kernel(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> Kernel:
        """The kernel for such tensors, all (B,H,N,D)."""
        size = Size.of(query, key)
        if size not in self._kernels:
            candidates = kernels_of(query.device)
            self.names[size] = fastest(candidates, query[:, :, :QUERIES], key, value)
            self._kernels[size] = candidates[self.names[size]]
        return self._kernels[size]


def fastest(
    candidates: Mapping[str, Kernel], query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
) -> str:
    """Name of the kernel that takes the least time, in favour of the first."""
    if len(candidates) == 1:
        return next(iter(candidates))
    seconds: dict[str, float] = {}
    for name, kernel in candidates.items():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                seconds[name] = _measure(kernel, query, key, value, min(seconds.values(), default=0.0))
            except RuntimeError:
                continue  # it does not know this dtype or width
    best = min(seconds, key=seconds.__getitem__, default=FUSED)
    preferred = next(iter(candidates))
    return best if seconds[best] < MARGIN * seconds.get(preferred, float("inf")) else preferred


def _measure(
    kernel: Kernel, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, best: float
) -> float:
    """Least seconds of a few calls after a first one, which also makes a kernel build what it needs."""
    first = _seconds(kernel, query, key, value)
    if best and query.device.type == "cpu" and first > HOPELESS * best:
        return first
    return min(_seconds(kernel, query, key, value) for _ in range(REPEATS))


def _seconds(kernel: Kernel, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> float:
    _finish(query.device)
    began = perf_counter()
    kernel(query, key, value, None)
    _finish(query.device)
    return perf_counter() - began


def _finish(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
