"""Which kernel serves attention of a given size: measured once, at the first call, and then kept."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from time import perf_counter
from typing import NamedTuple

import torch

from .kernels import FUSED, Kernel, kernels_of

REPEATS = 4
#: Queries that are measured with, after a trial with a few; all heads and keys are.
QUERIES, TRIAL = 1024, 64
#: A kernel replaces the preferred one only when it takes less than this share of its time: what is as good as
#: even must not be decided by chance, since kernels round differently.
MARGIN = 0.7
#: A kernel this many times slower than the best in the trial is not measured further.
HOPELESS = 5.0


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
            self.names[size] = fastest(candidates, query, key, value)
            self._kernels[size] = candidates[self.names[size]]
        return self._kernels[size]


def fastest(
    candidates: Mapping[str, Kernel], query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
) -> str:
    """Name of the kernel that takes the least time, in favour of the first; they take turns."""
    preferred = next(iter(candidates))
    able = _able(candidates, query[:, :, :TRIAL], key, value)
    if not able:
        return FUSED
    if len(able) == 1:
        return next(iter(able))
    seconds = dict.fromkeys(able, float("inf"))
    for _ in range(REPEATS):
        for name, kernel in able.items():
            seconds[name] = min(seconds[name], _seconds(kernel, query[:, :, :QUERIES], key, value))
    best = min(seconds, key=seconds.__getitem__)
    return best if seconds[best] < MARGIN * seconds.get(preferred, float("inf")) else preferred


def _able(
    candidates: Mapping[str, Kernel], query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
) -> Mapping[str, Kernel]:
    """Those that know the dtype and width and are not hopelessly slow, by a second call with few queries."""
    if len(candidates) == 1:
        return candidates
    seconds: dict[str, float] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, kernel in candidates.items():
            try:
                seconds[name] = min(_seconds(kernel, query, key, value) for _ in range(2))
            except RuntimeError:
                continue
    limit = HOPELESS * min(seconds.values(), default=0.0)
    return {name: candidates[name] for name, needed in seconds.items() if needed <= limit}


def _seconds(kernel: Kernel, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> float:
    _finish(query.device)
    began = perf_counter()
    kernel(query, key, value, None)
    _finish(query.device)
    return perf_counter() - began


def _finish(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
