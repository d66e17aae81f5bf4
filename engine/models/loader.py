"""From a file on disk to a model in memory, one piece of one tensor at a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import nn

from .family import Config
from .header import read_header
from .model import Model
from .plan import Read, make_plan, nbytes, state_shapes
from .quant.fill import LayerReader
from .quant.linear import SMOOTHING, SmoothedLinear
from .quant.placement import Kept, count_layers, place
from .quant.rounding import DEFAULT, round_plan
from .reader import Progress, Reader
from .registry import Detected, detect

Weights = dict[str, torch.Tensor]


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

    `progress(done, total)` is called in bytes after every piece; what it raises ends the load and frees all.
    `config` replaces the one inferred from the file. `weight_dtype`: the fp8 that weights are rounded to, as
    UNETLoader has it. Host memory: 32 MB and some scratch, and the model if on the host.
    Raises ModelError; keys and shapes are checked before the first weight is read.
    """
    header = read_header(path)
    detected = detect(header, config)
    module = detected.family.build(detected.config)
    shapes = state_shapes(module)
    plan = round_plan(make_plan(detected, shapes), detected, module, weight_dtype)
    kept = place(plan, module, dtype, device)
    low_bit = count_layers(plan, kept)
    weights = {
        name: torch.empty(shape, dtype=dtype, device=device)
        for name, shape in shapes.items()
        if name not in kept
    }
    with header.path.open("rb", buffering=0) as file:
        _read_all(Reader(file, header, device, progress, nbytes(plan)), plan, weights, kept, module, dtype)
    module.load_state_dict(weights, strict=True, assign=True)
    assert not any(tensor.is_meta for tensor in (*module.parameters(), *module.buffers()))
    return Model(detected.family, module.requires_grad_(False), dtype, device, header, low_bit)


def inspect(path: Path, config: Config | None = None) -> Detected:
    """Everything `load` checks, without reading a weight."""
    detected = detect(read_header(path), config)
    make_plan(detected, state_shapes(detected.family.build(detected.config)))
    return detected


def _read_all(
    reader: Reader,
    plan: Sequence[Read],
    weights: Weights,
    kept: Mapping[str, Kept],
    module: nn.Module,
    dtype: torch.dtype,
) -> None:
    """Fill `weights` in file order; layers whose weights are kept as stored take their places in `module`."""
    layers = LayerReader(reader)
    placed: set[str] = set()
    for read in plan:
        if read.target in weights:
            target = weights[read.target]
            rows = target[read.target_first :][: read.rows] if read.info.shape else target
            if read.layer is None:
                start = read.info.start + read.first * (read.nbytes // max(1, read.rows))
                reader.fill(rows, read.info.dtype, start, read.through)
            else:
                layers.fill(rows, read)
                if SMOOTHING in read.layer.parts:
                    _replace(
                        module,
                        read.target,
                        SmoothedLinear(_linear(module, read.target), layers.smoothing(read.layer)),
                    )
        elif read.target not in placed:
            placed.add(read.target)
            _replace(
                module, read.target, layers.linear(kept[read.target], _linear(module, read.target), dtype)
            )


def _linear(module: nn.Module, weight: str) -> nn.Linear:
    linear = module.get_submodule(weight.rpartition(".")[0])
    assert isinstance(linear, nn.Linear)
    return linear


def _replace(module: nn.Module, weight: str, part: nn.Module) -> None:
    """Put `part` where the module that owns `weight` is."""
    parent, _, name = weight.rpartition(".")[0].rpartition(".")
    setattr(module.get_submodule(parent), name, part)
