"""From a file on disk to a model in memory, one piece of one tensor at a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from ..attention.seam import Attention
from .family import Config
from .header import Header, read_header
from .model import Model
from .plan import Read, make_plan, nbytes, state_shapes
from .quant.fill import LayerReader
from .quant.linear import SMOOTHING, SmoothedLinear
from .quant.placement import Kept, count_layers, kept_bytes, place
from .quant.rounding import DEFAULT, round_plan
from .reader import Progress, Reader
from .registry import Detected, detect

Weights = dict[str, torch.Tensor]


@dataclass(frozen=True, eq=False)
class Prepared:
    """A file found fit to load, before the first weight of it is read."""

    header: Header
    detected: Detected
    module: nn.Module
    plan: Sequence[Read]
    kept: Mapping[str, Kept]
    dtype: torch.dtype
    device: torch.device

    @property
    def nbytes(self) -> int:
        """Bytes the model will take on its device."""
        plain = (shape for name, shape in state_shapes(self.module).items() if name not in self.kept)
        return sum(shape.numel() for shape in plain) * self.dtype.itemsize + kept_bytes(self.kept)

    def load(self, progress: Progress | None = None, attention: Attention | None = None) -> Model:
        """Read the weights, once.

        `progress(done, total)` is called in bytes after every piece; what it raises ends the load.
        `attention` is shared by the models of a device.
        """
        weights = {
            name: torch.empty(shape, dtype=self.dtype, device=self.device)
            for name, shape in state_shapes(self.module).items()
            if name not in self.kept
        }
        low_bit = count_layers(self.plan, self.kept)
        with self.header.path.open("rb", buffering=0) as file:
            reader = Reader(file, self.header, self.device, progress, nbytes(self.plan))
            _read_all(reader, self, weights)
        self.module.load_state_dict(weights, strict=True, assign=True)
        assert not any(tensor.is_meta for tensor in (*self.module.parameters(), *self.module.buffers()))
        module = self.module.requires_grad_(False)
        return Model(
            self.detected.family,
            module,
            self.dtype,
            self.device,
            self.header,
            low_bit,
            attention,
            self.detected,
            self.plan,
        )


def prepare(
    path: Path,
    *,
    dtype: torch.dtype,
    device: torch.device,
    config: Config | None = None,
    weight_dtype: str = DEFAULT,
) -> Prepared:
    """Check all that can be told of a file without its weights. Arguments and errors as of `load`."""
    header = read_header(path)
    detected = detect(header, config)
    module = detected.family.build(detected.config)
    plan = round_plan(make_plan(detected, state_shapes(module)), detected, module, weight_dtype)
    return Prepared(header, detected, module, plan, place(plan, module, dtype, device), dtype, device)


def load(
    path: Path,
    *,
    dtype: torch.dtype,
    device: torch.device,
    progress: Progress | None = None,
    config: Config | None = None,
    weight_dtype: str = DEFAULT,
) -> Model:
    """Load a diffusion transformer that computes in `dtype` on `device`.

    `progress`: as of `Prepared.load`. `config` replaces the one inferred from the file. `weight_dtype`: the
    fp8 that weights are rounded to, as UNETLoader has it. Host memory: 32 MB and some scratch, and the model
    if on the host. Raises ModelError; keys and shapes are checked before the first weight is read.
    """
    prepared = prepare(path, dtype=dtype, device=device, config=config, weight_dtype=weight_dtype)
    return prepared.load(progress)


def inspect(path: Path, config: Config | None = None) -> Detected:
    """Everything `load` checks, without reading a weight."""
    detected = detect(read_header(path), config)
    make_plan(detected, state_shapes(detected.family.build(detected.config)))
    return detected


def _read_all(reader: Reader, prepared: Prepared, weights: Weights) -> None:
    """Fill `weights` in file order; layers that keep theirs as stored take their places in the module."""
    layers, module = LayerReader(reader), prepared.module
    placed: set[str] = set()
    for read in prepared.plan:
        if read.target in weights:
            target = weights[read.target]
            _fill(
                reader, layers, read, target[read.target_first :][: read.rows] if read.info.shape else target
            )
            if read.layer is not None and SMOOTHING in read.layer.parts:
                smoothed = SmoothedLinear(_linear(module, read.target), layers.smoothing(read.layer))
                _replace(module, read.target, smoothed)
        elif read.target not in placed:
            placed.add(read.target)
            linear = _linear(module, read.target)
            _replace(module, read.target, layers.linear(prepared.kept[read.target], linear, prepared.dtype))


def _fill(reader: Reader, layers: LayerReader, read: Read, rows: torch.Tensor) -> None:
    if read.layer is not None:
        layers.fill(rows, read)
    else:
        start = read.info.start + read.first * (read.nbytes // max(1, read.rows))
        reader.fill(rows, read.info.dtype, start, read.through)


def _linear(module: nn.Module, weight: str) -> nn.Linear:
    linear = module.get_submodule(weight.rpartition(".")[0])
    assert isinstance(linear, nn.Linear)
    return linear


def _replace(module: nn.Module, weight: str, part: nn.Module) -> None:
    """Put `part` where the module that owns `weight` is."""
    parent, _, name = weight.rpartition(".")[0].rpartition(".")
    setattr(module.get_submodule(parent), name, part)
