"""Golden checkpoints put together as the index says: parts, overlays, dropped prefixes, factored tensors."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from golden.folder import golden_root


def read_tensors(name: str) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors and metadata of one golden file, factored tensors multiplied out (exact, in bf16)."""
    with safe_open(golden_root() / name, "pt") as file:
        metadata: dict[str, str] = file.metadata() or {}
        tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    for key, factors in _factored(metadata).items():
        left, right = tensors.pop(f"{key}.__B"), tensors.pop(f"{key}.__A")
        tensors[key] = _multiply(left, right, factors)
    return tensors, metadata


def _factored(metadata: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    factored: dict[str, dict[str, Any]] = json.loads(metadata.get("factored", "{}")) or {}
    return factored


def _multiply(left: Tensor, right: Tensor, factors: Mapping[str, Any]) -> Tensor:
    product: Tensor = (left.double() @ right.double()).reshape(factors["shape"]) * 2.0 ** factors["exp"]
    return product.to(torch.bfloat16)


def assemble(case: Mapping[str, Any]) -> dict[str, Tensor]:
    """The checkpoint of a case, under the keys of a published single file."""
    tensors: dict[str, Tensor] = {}
    for name in case["ckpt_files"]:
        tensors |= read_tensors(name)[0]
    dropped = tuple(case["ckpt_drop_prefixes"])
    return {key: tensor for key, tensor in tensors.items() if not dropped or not key.startswith(dropped)}


def write(case: Mapping[str, Any], folder: Path) -> Path:
    """The checkpoint of a case as a file in `folder`; cases that share one checkpoint share the file."""
    parts = [*case["ckpt_files"], *case["ckpt_drop_prefixes"]]
    path = folder / ("+".join(part.replace("/", "_") for part in parts) + ".safetensors")
    if not path.exists():
        save_file(assemble(case), path)
    return path


def needs_config(case: Mapping[str, Any]) -> bool:
    """Whether shapes alone do not tell the model: its heads are narrower than any published one's."""
    return str(case["family"]).endswith(("-mh", "chroma", "hunyuan-video", "ltx-video"))
