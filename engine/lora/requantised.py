"""A weight of few bits: its values changed and stored anew in as many, whether memory has it so or unpacked.

ComfyUI does the same with a model that it has in memory whole. The base is read from the file again, since
what was unpacked in the model's dtype is no longer exact.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from ...protocol.errors import CheckpointError
from ..models.header import read_header
from ..models.model import Model
from ..models.plan import Read
from ..models.quant.fill import LayerReader, Stored, cut, joined
from ..models.quant.unpack import unpack
from ..models.reader import Reader
from .change import change_all
from .layout import FileWeight
from .names import comfy_name
from .patch import Patch
from .places import kept_layer, part_of, rows_of
from .requantise import requantised, round_by_chance, seed_of

STAGED = 16 << 20
"""Bytes read at a time."""


class RequantisedStore:
    """Writes a weight in the precision its file has; the host keeps what stood in memory before."""

    def __init__(self, model: Model, weight: FileWeight) -> None:
        self._model, self._weight = model, weight
        self._seed = seed_of(comfy_name(model.family, weight.key))
        self._bases: list[torch.Tensor] = []

    def write(self, patches: Sequence[Patch]) -> int:
        if not self._bases:
            self._bases = [tensor.to("cpu", copy=True) for tensor in self._memory()]
        with _opened(self._model) as reader:
            if self._weight.reads[0].layer is None:
                self._write_values(reader, patches)
            else:
                self._write_layer(LayerReader(reader), patches)
        return sum(base.nbytes for base in self._bases)

    def restore(self) -> int:
        written = sum(base.nbytes for base in self._bases)
        for tensor, base in zip(self._memory(), self._bases, strict=bool(self._bases)):
            tensor.copy_(base)
        self._bases = []
        return written

    def _memory(self) -> Iterator[torch.Tensor]:
        """Everything in the module's memory that the weight makes up."""
        for read in self._weight.reads:
            layer = kept_layer(self._model.module, read)
            if layer is None:
                yield rows_of(self._model.module, read)
            else:
                yield from (layer.get_buffer("packed"), *layer.parts.values())

    def _write_values(self, reader: Reader, patches: Sequence[Patch]) -> None:
        """A weight that has been rounded to fp8 on its way into the model's dtype, without a scale."""
        read = self._weight.reads[0]
        assert read.through is not None
        whole = torch.empty(self._weight.shape, device=self._model.device)
        reader.fill(whole, read.info.dtype, read.info.start, read.through)
        change_all(whole, patches)
        rounded = round_by_chance(whole, read.through, self._seed)
        for part in self._weight.reads:
            rows_of(self._model.module, part).copy_(part_of(rounded, part))

    def _write_layer(self, reader: LayerReader, patches: Sequence[Patch]) -> None:
        layer = self._weight.reads[0].layer
        assert layer is not None
        before = reader.stored(layer, 0, layer.shape[0])
        rows, columns = self._weight.shape[0], torch.Size(self._weight.shape[1:]).numel()
        values = unpack(layer.format, layer.options, *before, torch.float32)
        whole = values[:rows, :columns].reshape(self._weight.shape).clone()
        change_all(whole, patches)
        after = requantised(layer, before, whole.reshape(rows, columns), self._seed)
        self._write_stored(after)

    def _write_stored(self, after: Stored) -> None:
        for target in dict.fromkeys(read.target for read in self._weight.reads):
            reads = [read for read in self._weight.reads if read.target == target]
            reads.sort(key=lambda read: read.target_first)
            if kept_layer(self._model.module, reads[0]) is None:
                self._write_unpacked(reads, after)
            else:
                self._write_packed(reads, after)

    def _write_unpacked(self, reads: Sequence[Read], after: Stored) -> None:
        layer = reads[0].layer
        assert layer is not None
        values = unpack(layer.format, layer.options, *after, self._model.dtype)
        for read in reads:
            rows = rows_of(self._model.module, read)
            rows.copy_(values[read.first :][: read.rows, : rows[:1].numel()].reshape(rows.shape))

    def _write_packed(self, reads: Sequence[Read], after: Stored) -> None:
        layer, kept = reads[0].layer, kept_layer(self._model.module, reads[0])
        assert layer is not None
        assert kept is not None
        packed, parts = joined(layer, [cut(layer, after, read) for read in reads])
        kept.get_buffer("packed").copy_(packed)
        for name, part in kept.parts.items():
            part.copy_(parts[name].reshape(part.shape))


@contextmanager
def _opened(model: Model) -> Iterator[Reader]:
    """The model's file, once found to be the one it was loaded from."""
    header = model.header
    if read_header(header.path).digest != header.digest:
        raise CheckpointError(
            f"{header.path}: is no longer the file that this model was loaded from, and the base of its "
            "quantised weights cannot be read.",
            hint="Unload the model, and load it again.",
        )
    with header.path.open("rb", buffering=0) as file:
        yield Reader(file, header, model.device, None, STAGED)
