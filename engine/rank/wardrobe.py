"""What one resident model wears: before each request exactly the adapters that it names, whoever asks."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ...protocol.errors import CheckpointError
from ..lora.file import LoraContents, read_lora
from ..lora.names import of_text_encoder
from ..lora.overlay import Overlay
from ..lora.patch import Patch
from ..models.header import read_header
from ..models.model import Model
from .adapters import Entry, FileEntry

#: A file as it was at one time: path, size, time of change.
Version = tuple[str, int, int]


@dataclass(frozen=True)
class Worn:
    """What a model wears: how many patches and files, on how many weights; what matched nothing; seconds to
    change into it, 0 when no weight was rewritten.
    """

    adapters: int = 0
    weights: int = 0
    unmatched: tuple[str, ...] = ()
    seconds: float = 0.0


class Wardrobe:
    """The overlay of one model. Contents of LoRA files are kept for it, at most `budget` bytes of them."""

    def __init__(self, model: Model, budget: int) -> None:
        self._model = model
        self._budget = budget
        self._overlay: Overlay | None = None
        self._files: OrderedDict[Version, LoraContents] = OrderedDict()

    def wear(self, entries: Sequence[Entry]) -> Worn:
        """Change into `entries`, whatever was worn before; none means the weights of the model's file.

        Raises CheckpointError for a file that fits no weight of the model, or that has changed since the
        supervisor found it, InvalidRequestError for a patch that does not fit.
        """
        if self._overlay is None:
            if not entries:
                return Worn()
            self._overlay = Overlay(self._model)
        began = time.perf_counter()
        files = [self._contents(entry) for entry in entries if isinstance(entry, FileEntry)]
        read = iter(files)
        patches: list[Patch] = []
        for entry in entries:
            patches += next(read).at(entry.file.strength) if isinstance(entry, FileEntry) else [entry]
        touched = self._overlay.use(patches)
        seconds = time.perf_counter() - began if touched.weights else 0.0
        left = dict.fromkeys(key for contents in files for key in contents.unmatched)
        unmatched = tuple(key for key in left if not of_text_encoder(key))
        weights = len({patch.key for patch in patches})
        return Worn(len(entries), weights, unmatched, seconds)

    def _contents(self, entry: FileEntry) -> LoraContents:
        path = Path(entry.path)
        status = path.stat()
        version = (entry.path, status.st_size, status.st_mtime_ns)
        if version not in self._files:
            self._files[version] = self._read(path, entry)
            while len(self._files) > 1 and sum(map(_nbytes, self._files.values())) > self._budget:
                self._files.popitem(last=False)
        self._files.move_to_end(version)
        return self._files[version]

    def _read(self, path: Path, entry: FileEntry) -> LoraContents:
        header = read_header(path)
        if (header.size, header.digest) != (entry.file.size, entry.file.digest):
            raise CheckpointError(
                f"The LoRA file {entry.file.name} ({path}) has changed since it was asked for.",
                hint="Queue the prompt once more.",
            )
        return read_lora(path, self._model)


def _nbytes(contents: LoraContents) -> int:
    return sum(tensor.nbytes for patch in contents.patches for tensor in patch.tensors.values())
