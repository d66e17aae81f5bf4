"""The models and calls that layouts are tried on: golden cases, and small networks with four heads."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from golden import checkpoints
from golden.folder import entries, golden_root
from golden.test_dit import resolve
from models.files import file_shapes, random_tensors, save
from models.tiny import CONFIGS, noise
from outboard.engine.models.header import read_header
from outboard.engine.models.loader import load
from outboard.engine.models.model import Model
from outboard.engine.models.registry import FAMILIES

#: Odd sizes, prompts that do not divide, two rows, references, residuals, masks, one to nine heads.
CASES = (
    ("flux1-dev-mh", "t2i-bs2"),
    ("flux1-dev-mh", "kontext-offset-odd"),
    ("flux1-dev", "control-none-short"),
    ("flux2-dev-mh", "t2i"),
    ("flux2-klein", "odd5x7-bs2"),
    ("flux2-dev", "refs2"),
    ("qwen-image-mh", "odd17x23-bs2"),
    ("qwen-image", "bs2-mask"),
    ("qwen-image", "control"),
    ("qwen-image-edit-2511", "ref-larger"),
    ("z-image", "bs2-L40"),
    ("z-image", "odd17x23-L11"),
    ("ernie-image-mh", "t2i-L19-bs2"),
    ("ernie-image", "ragged-a-L11"),
    ("wan21-t2v-mh", "odd-T2"),
    ("wan21-i2v", "T3"),
    ("wan22-ti2v-5b", "denoise-mask-T3"),
    ("chroma", "odd17x23-bs2"),
    ("sd3", "odd17x23-bs2"),
    ("hunyuan-video", "T3-masked"),
    ("ltx-video", "T3-bs2-mask"),
)
FOUR_HEADS: dict[str, dict[str, Any]] = {
    "ernie_image": CONFIGS["ernie_image"] | {"num_attention_heads": 4, "rope_axes_dim": (8, 12, 12)},
    "z_image": CONFIGS["z_image"]
    | {"dim": 96, "n_heads": 4, "n_kv_heads": 4, "n_layers": 2, "axes_dims": (8, 8, 8)},
    "wan": CONFIGS["wan"] | {"num_attention_heads": 4, "attention_head_dim": 32, "num_layers": 2},
}


@dataclass(frozen=True)
class Subject:
    """A model file and one call of it."""

    name: str
    path: Path
    config: Mapping[str, Any] | None
    case: str = ""

    def load(self) -> Model:
        return load(self.path, dtype=torch.float32, device=torch.device("cpu"), config=self.config)

    def call(self) -> dict[str, Any]:
        """x, timestep and conditioning in one table."""
        if not self.case:
            return _random_call(self.name)
        tensors, recorded = checkpoints.read_tensors(self.case)
        given: dict[str, Any] = resolve(json.loads(recorded["raw_kwargs"]), tensors)
        given |= json.loads(recorded["transformer_options"])
        return given


def write_subjects(folder: Path) -> list[Subject]:
    """Write every subject's file. Cases that a plain clone's golden folder lacks are left out."""
    cases = {(case["family"], case["case"]): case for case in entries("dit_case")}
    found = [_golden(cases[key], folder) for key in CASES if key in cases]
    families = {family.name: family for family in FAMILIES}
    for name, config in FOUR_HEADS.items():
        weights = random_tensors(file_shapes(families[name], config), torch.float32, 0.1)
        path = save(folder / f"{name}-4-heads.safetensors", weights)
        found.append(Subject(f"{name}-4-heads", path, config))
    return found


def _golden(case: Mapping[str, Any], folder: Path) -> Subject:
    told = read_header(golden_root() / case["path"]).metadata["diffusers_config"]
    config = json.loads(told) if checkpoints.needs_config(case) else None
    name = f"{case['family']} {case['case']}"
    return Subject(name, checkpoints.write(case, folder), config, case["path"])


def _random_call(name: str) -> dict[str, Any]:
    shape = {"ernie": (2, 128, 5, 7), "z_ima": (2, 4, 9, 7), "wan-4": (2, 4, 3, 5, 7)}[name[:5]]
    scale = {"ernie": 700.0, "z_ima": 0.7, "wan-4": 700.0}[name[:5]]
    return {"x": noise(*shape), "timestep": torch.full((2,), scale), "context": noise(2, 13, 24)}
