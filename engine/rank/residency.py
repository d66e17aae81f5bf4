"""The models in a rank's memory: loaded at first use, kept while there is room, the stalest dropped first."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import nn

from ...protocol.messages.common import ModelRef, ModelSettings
from ...protocol.messages.control import ResidentModel
from ..attention.seam import Attention
from ..models.family import Family
from ..models.header import read_header
from ..models.loader import Prepared, prepare
from ..models.model import Model
from .device import free_bytes, release_memory
from .dtype import compute_dtype, dtype_name
from .wardrobe import Wardrobe

Progress = Callable[[int, int], None]

#: Bytes per byte of weights that a model should find free, the rest being what it computes with.
HEADROOM = 1.2


@dataclass(frozen=True)
class Key:
    """One model as one run needs it.

    `file` (device, inode, time of change) is the same under every name of a file, and another for a copy or a
    successor, whose header may be equal.
    """

    digest: str
    size: int
    file: tuple[int, int, int]
    dtype: torch.dtype
    weight_dtype: str
    tp: int = 1
    """Ranks that have a part of its weights each."""


@dataclass(eq=False)
class Resident:
    """A model in memory, by the name it was asked for."""

    name: str
    model: Model
    nbytes: int
    wardrobe: Wardrobe

    def describe(self) -> ResidentModel:
        dtype = dtype_name(self.model.dtype)
        return ResidentModel(name=self.name, family=self.model.family, dtype=dtype, nbytes=self.nbytes)


@dataclass(frozen=True, eq=False)
class Wanted:
    """A model that a request asks for, found fit: in memory, or as a file of which no weight is read yet."""

    name: str
    path: Path
    key: Key
    module: nn.Module
    """On meta as long as it is not resident."""
    adapter: Family
    nbytes: int
    resident: bool
    low_bit: bool = False


@dataclass(frozen=True, eq=False)
class Loan:
    """A resident model for one request, its wardrobe, and the seconds it took to load (0: it was there)."""

    model: Model
    wardrobe: Wardrobe
    seconds_loading: float


class Residency:
    """Resident models of one device. `budget` bytes in all; 0 lets the device's free memory decide.

    `file_budget`: bytes of LoRA files that each model keeps on the host.
    """

    def __init__(
        self, device: torch.device, default_dtype: str, budget: int, file_budget: int = 2**32
    ) -> None:
        self._device = device
        self._default_dtype = default_dtype
        self._budget = budget
        self._file_budget = file_budget
        self._residents: OrderedDict[Key, Resident] = OrderedDict()
        self._dtypes: dict[tuple[tuple[int, int, int], str], torch.dtype] = {}
        self._attention = Attention()

    @property
    def nbytes(self) -> int:
        return sum(resident.nbytes for resident in self._residents.values())

    def describe(self) -> list[ResidentModel]:
        return [resident.describe() for resident in self._residents.values()]

    def find(self, path: Path, ref: ModelRef, settings: ModelSettings) -> Wanted:
        """What is known of a model before it is lent; a file that cannot become one is refused here.

        That is before any other model makes room for it.
        """
        key = self._key(path, ref, settings)
        for known, resident in self._residents.items():
            if replace(known, tp=1) == key:
                model = resident.model
                nbytes = resident.nbytes * known.tp
                return Wanted(ref.name, path, key, model.module, model.adapter, nbytes, resident=True)
        found = self._prepare(path, key, self._device)
        family, low_bit = found.detected.family, any(read.layer for read in found.plan)
        return Wanted(ref.name, path, key, found.module, family, found.nbytes, False, low_bit)

    def lend(self, wanted: Wanted, progress: Progress, tp: int = 1) -> Loan:
        """The model, loaded now if it is not resident; what `progress` raises ends the load.

        `tp` ranks will have a part of the weights each: they are read to the host then, for the rank to take
        its part of.
        """
        key = replace(wanted.key, tp=tp)
        resident = self._residents.get(key)
        if resident is not None:
            self._residents.move_to_end(key)
            return Loan(resident.model, resident.wardrobe, 0.0)
        began = time.perf_counter()
        place = self._device if tp == 1 else torch.device("cpu")
        prepared = self._prepare(wanted.path, key, place)
        self._make_room(prepared.nbytes // tp)
        model = self._load(prepared, progress)
        wardrobe = Wardrobe(model, self._file_budget)
        self._residents[key] = Resident(wanted.name, model, model.nbytes // tp, wardrobe)
        return Loan(model, wardrobe, time.perf_counter() - began)

    def _prepare(self, path: Path, key: Key, device: torch.device) -> Prepared:
        return prepare(path, dtype=key.dtype, device=device, weight_dtype=key.weight_dtype)

    def unload(self, ref: ModelRef | None = None) -> int:
        """Drop one model in every form, or all; returns the bytes of weights freed."""
        before = self.nbytes
        for key in [
            key for key in self._residents if ref is None or (key.digest, key.size) == (ref.digest, ref.size)
        ]:
            del self._residents[key]
        release_memory(self._device)
        return before - self.nbytes

    def _key(self, path: Path, ref: ModelRef, settings: ModelSettings) -> Key:
        wanted = self._default_dtype if settings.dtype == "auto" else settings.dtype
        status = path.stat()
        file = (status.st_dev, status.st_ino, status.st_mtime_ns)
        if (file, wanted) not in self._dtypes:
            self._dtypes[file, wanted] = compute_dtype(wanted, read_header(path), self._device)
        return Key(ref.digest, ref.size, file, self._dtypes[file, wanted], settings.weight_dtype)

    def _load(self, prepared: Prepared, progress: Progress) -> Model:
        try:
            return prepared.load(progress, self._attention)
        finally:
            # Staging buffers, and the torso of a load that was cancelled.
            release_memory(self._device)

    def _make_room(self, needed: int) -> None:
        while self._residents and not self._fits(needed):
            self._residents.popitem(last=False)
            release_memory(self._device)

    def _fits(self, needed: int) -> bool:
        if self._budget:
            return self.nbytes + needed <= self._budget
        return needed * HEADROOM <= free_bytes(self._device)
