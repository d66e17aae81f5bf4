"""Tiny FLUX.1 models, plain and in few bits, and their LoRAs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
import torch

from models.files import save
from models.quant import files
from models.tiny import noise
from outboard.engine.lora.file import read_lora
from outboard.engine.lora.patch import Patch
from outboard.engine.models.loader import load, prepare
from outboard.engine.models.model import Model
from outboard.engine.models.quant import placement
from outboard.engine.models.quant.formats import INTEGER
from outboard.engine.models.quant.linear import QuantLinear

from . import files as loras

CPU = torch.device("cpu")
QUANTISED = (*files.ORDINARY, files.SWAPPED)


def file_of(folder: Path, formats: Mapping[str, str] | None = None) -> Path:
    return save(folder / "model.safetensors", files.model(formats or {})[0])


def everywhere(name: str) -> dict[str, str]:
    return dict.fromkeys(QUANTISED, name)


def kept_as_on_a_gpu(path: Path, monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype) -> Model:
    """Loaded on the CPU in the forms that a GPU would be given."""
    with monkeypatch.context() as patched:
        patched.setattr(placement, "kernel_available", lambda name, _: name in INTEGER)
        prepared = prepare(path, dtype=dtype, device=CPU)
        kept = placement.place(prepared.plan, prepared.module, dtype, torch.device("cuda"))
    return type(prepared)(**{**vars(prepared), "kept": kept}).load()


def fresh(path: Path, dtype: torch.dtype = torch.float32, weight_dtype: str = "default") -> Model:
    return load(path, dtype=dtype, device=CPU, weight_dtype=weight_dtype)


def patches(model: Model, folder: Path, strength: float, tensors: loras.Tensors | None = None) -> list[Patch]:
    path = loras.save(folder / "lora.safetensors", tensors or loras.ordinary())
    return read_lora(path, model).at(strength)


def memory(model: Model) -> dict[str, torch.Tensor]:
    """A copy of everything the module holds."""
    module = model.module
    held = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    return {name: tensor.detach().clone() for name, tensor in held.items()}


def same(one: Mapping[str, torch.Tensor], two: Mapping[str, torch.Tensor]) -> bool:
    """Whether both hold the same bytes."""
    return one.keys() == two.keys() and all(torch.equal(_raw(one[name]), _raw(two[name])) for name in one)


def _raw(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().reshape(-1).view(torch.uint8)


def answer(model: Model) -> torch.Tensor:
    given = {"context": noise(1, 5, 24), "y": noise(1, 12), "guidance": torch.tensor([3.5])}
    return model.predict(noise(1, 16, 8, 8), torch.tensor([0.6]), given).float()


def in_few_bits(model: Model) -> int:
    return sum(isinstance(part, QuantLinear) for part in model.module.modules())
