"""What one engine is configured to be, parsed once from options and environment variables."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from ..protocol.errors import InvalidRequestError
from .parallel.layout import Layout

if TYPE_CHECKING:
    from .cache.config import CacheConfig

Life = Literal["owned", "shared"]
DTYPES = ("auto", "float32", "bfloat16", "float16")
KINDS = ("diffusion_models", "loras")

_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30}


@dataclass(frozen=True)
class EngineConfig:
    """One engine. Sizes in bytes, times in seconds; a `memory_budget` of 0 is whatever the device has free.

    roots      model kind -> folders searched for its files, in order
    device     "auto" (the first CUDA device, else the CPU), "cpu", "cuda" or "cuda:<index>"
    bind       "" for this user's processes only, else "tcp://host:port": work there, control on the next port
    keys       folder of CURVE keys (`outboard keys`); required to bind beyond loopback
    idle_exit  a shared engine ends after so long without a session; 0 never
    cache      the step cache of runs that bring no settings of their own; None for none
    ranks      processes, one for each device, that compute one picture together
    layout     how they share it; None for the best for each request
    """

    roots: Mapping[str, tuple[Path, ...]]
    life: Life = "shared"
    device: str = "auto"
    dtype: str = "auto"
    bind: str = ""
    keys: Path | None = None
    ranks: int = 1
    threads: int = 0
    memory_budget: int = 0
    blob_budget: int = 2**30
    adapter_budget: int = 2**32
    idle_exit: float = 0.0
    cache: CacheConfig | None = None
    layout: Layout | None = None

    def __post_init__(self) -> None:
        _require(self.dtype in DTYPES, f"dtype {self.dtype!r} is not one of {', '.join(DTYPES)}")
        _require(_is_device(self.device), f"device {self.device!r} is not auto, cpu, cuda or cuda:<index>")
        _require(self.ranks >= 1, "an engine needs at least one rank")
        _require(
            self.ranks == 1 or ":" not in self.device,
            f"device {self.device!r} is one device, and there are {self.ranks} ranks: name the kind alone, "
            "and choose devices with CUDA_VISIBLE_DEVICES",
        )
        if self.layout is not None:
            self.layout.check_world(self.ranks)
        _require(
            min(self.threads, self.memory_budget, self.idle_exit) >= 0, "sizes and times are not negative"
        )
        _require(self.blob_budget > 0, "the blob budget must leave room for a conditioning")
        _require(self.adapter_budget > 0, "the adapter budget must leave room for a LoRA")
        unknown = set(self.roots) - set(KINDS)
        _require(not unknown, f"model kind {', '.join(sorted(unknown))} is not one of {', '.join(KINDS)}")


@dataclass(frozen=True)
class Environment:
    """Every OUTBOARD_* variable the engine's side reads; the command line overrides each."""

    variables: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))

    @property
    def python(self) -> str:
        """OUTBOARD_PYTHON: the interpreter that runs the engine."""
        return self.variables.get("OUTBOARD_PYTHON", "")

    @property
    def runtime_dir(self) -> str:
        """OUTBOARD_RUNTIME_DIR: where sockets, locks, registrations and logs lie."""
        return self.variables.get("OUTBOARD_RUNTIME_DIR", "")

    @property
    def home(self) -> str:
        """OUTBOARD_HOME: where `outboard setup` and `outboard keys` put what they make."""
        return self.variables.get("OUTBOARD_HOME", "")

    @property
    def device(self) -> str:
        """OUTBOARD_DEVICE: default of --device."""
        return self.variables.get("OUTBOARD_DEVICE", "auto")

    @property
    def dtype(self) -> str:
        """OUTBOARD_DTYPE: default of --dtype."""
        return self.variables.get("OUTBOARD_DTYPE", "auto")

    @property
    def threads(self) -> int:
        """OUTBOARD_THREADS: torch threads of a rank; 0 leaves torch's own choice."""
        return parse_count(self.variables.get("OUTBOARD_THREADS", "0"), "OUTBOARD_THREADS")

    @property
    def ranks(self) -> int:
        """OUTBOARD_RANKS: default of --ranks; 0 for as many as the degrees make."""
        return parse_count(self.variables.get("OUTBOARD_RANKS", "0"), "OUTBOARD_RANKS")

    @property
    def memory_budget(self) -> int:
        """OUTBOARD_MEMORY_BUDGET: bytes of resident models, e.g. 20G."""
        return parse_bytes(self.variables.get("OUTBOARD_MEMORY_BUDGET", "0"))

    @property
    def blob_budget(self) -> int:
        """OUTBOARD_BLOB_BUDGET: bytes of conditioning kept between runs, e.g. 1G."""
        return parse_bytes(self.variables.get("OUTBOARD_BLOB_BUDGET", "1G"))

    @property
    def adapter_budget(self) -> int:
        """OUTBOARD_ADAPTER_BUDGET: bytes of LoRAs kept between runs in host memory, e.g. 4G."""
        return parse_bytes(self.variables.get("OUTBOARD_ADAPTER_BUDGET", "4G"))


def parse_bytes(text: str) -> int:
    """`"512M"` -> 536870912. Units K, M, G are powers of 1024; none means bytes."""
    number, unit = (text[:-1], text[-1:].upper()) if text[-1:].isalpha() else (text, "")
    _require(unit in _UNITS, f"size {text!r} must end in K, M, G or nothing")
    return parse_count(number, "a size") * _UNITS[unit]


def parse_count(text: str, name: str) -> int:
    """A non-negative whole number, or InvalidRequestError naming what it was for."""
    _require(text.isascii() and text.isdigit(), f"{name} must be a whole number, not {text!r}")
    return int(text)


def _is_device(device: str) -> bool:
    kind, colon, index = device.partition(":")
    return kind in ("auto", "cpu", "cuda") and (not colon or (kind == "cuda" and index.isdigit()))


def _require(holds: bool, message: str) -> None:
    if not holds:
        raise InvalidRequestError(f"Engine configuration: {message}.", hint="See `outboard serve --help`.")
