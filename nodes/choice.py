"""What a graph may say about its engine and its sampling: the values of two small nodes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

AUTO = "auto"
Path = Literal["auto", "whole_loop", "per_step"]
DTYPES = ("auto", "float32", "bfloat16", "float16")
PATHS: tuple[Path, ...] = ("auto", "whole_loop", "per_step")

#: Where run settings travel inside a MODEL's options.
OPTION = "outboard"
#: And those of the step cache.
CACHE_OPTION = "outboard_cache"


@dataclass(frozen=True)
class EngineChoice:
    """Which engine, on which device, in which dtype; the address "auto" starts or adopts one here.

    ranks: devices that share each picture, 0 for those of an engine that runs, else one. degrees: how they
    share it, ranks by axis; none for the best for each run.
    """

    address: str = AUTO
    device: str = AUTO
    dtype: str = AUTO
    ranks: int = 0
    degrees: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True)
class RunSettings:
    """How one sampler runs: `whole_loop` fails where the fast path cannot be taken, `per_step` avoids it."""

    path: Path = "auto"
