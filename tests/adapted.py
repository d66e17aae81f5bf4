"""LoRAs for the shipped digits model, as sets of patches and as files."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import save_file

from outboard.engine.demo.assets import MODEL
from outboard.engine.models.header import read_header
from outboard.protocol.adapters import AdapterSet
from outboard.protocol.messages.adapters import LoraFile, WeightPatch
from outboard.protocol.tensors import digest
from outboard.protocol.torch import to_wire
from outboard.protocol.values import Blob, WireTensor

RANK = 2


def matrices(seed: int, every: int = 3) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """Up and down for some of the model's matrices, by the weight's name; the same for the same seed."""
    generator = torch.Generator().manual_seed(seed)
    shapes = {key: info.shape for key, info in read_header(MODEL).tensors.items() if len(info.shape) == 2}
    return {
        key: (
            0.2 * torch.randn(shapes[key][0], RANK, generator=generator),
            0.2 * torch.randn(RANK, shapes[key][1], generator=generator),
        )
        for key in sorted(shapes)[seed % every :: every]
    }


def lora(seed: int, strength: float = 1.0, every: int = 3) -> AdapterSet:
    """A set of LoRA patches."""
    patches: list[WeightPatch | LoraFile] = []
    tensors: dict[str, WireTensor] = {}
    for key, pair in matrices(seed, every).items():
        wires = {name: to_wire(value) for name, value in zip(("up", "down"), pair, strict=True)}
        tensors |= {digest(wire): wire for wire in wires.values()}
        named: dict[str, WireTensor | Blob] = {name: Blob(digest(wire)) for name, wire in wires.items()}
        patches.append(WeightPatch(kind="lora", key=key, tensors=named, strength=strength))
    return AdapterSet(patches, tensors)


def zeros(key: str, size: int) -> AdapterSet:
    """A difference of [size, size] zeros for the weight `key`."""
    wire = to_wire(torch.zeros(size, size))
    patch = WeightPatch(kind="diff", key=key, tensors={"diff": Blob(digest(wire))}, strength=1.0)
    return AdapterSet([patch], {digest(wire): wire})


def file(path: Path, seed: int, stray: int = 0, every: int = 3) -> LoraFile:
    """The same LoRA as a file, with so many keys that fit nothing; how the engine is told of it."""
    tensors: dict[str, torch.Tensor] = {}
    for key, (up, down) in matrices(seed, every).items():
        name = f"diffusion_model.{key.removesuffix('.weight')}"
        tensors |= {f"{name}.lora_B.weight": up, f"{name}.lora_A.weight": down}
    tensors |= {f"diffusion_model.nowhere.{n}.lora_A.weight": torch.zeros(RANK, 4) for n in range(stray)}
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file(tensors, path)
    return reference(path)


def reference(path: Path, strength: float = 1.0) -> LoraFile:
    header = read_header(path)
    return LoraFile(name=path.name, size=header.size, digest=header.digest, strength=strength)
