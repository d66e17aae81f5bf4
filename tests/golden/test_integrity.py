"""Every golden checkpoint, quantised ones too, with one tensor taken away or put in: never loaded."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from golden import checkpoints
from golden.folder import entries, golden_root
from golden.test_dit import metadata
from outboard.engine.models.header import Header, TensorInfo, read_header
from outboard.engine.models.plan import make_plan, state_shapes
from outboard.engine.models.registry import detect
from outboard.protocol.errors import ModelError

pytestmark = pytest.mark.golden


def files() -> dict[str, dict[str, Any]]:
    """One case for each checkpoint, and the quantised models."""
    cases = {
        json.dumps([case["ckpt_files"], case["ckpt_drop_prefixes"]]): case for case in entries("dit_case")
    }
    named = {f"{case['family']}-{case['case']}": case for case in cases.values()}
    return named | {Path(case["path"]).stem: case for case in entries("quant_model", absent_ok=True)}


def header_of(case: Mapping[str, Any], folder: Path) -> Header:
    if "ckpt_files" in case:
        return read_header(checkpoints.write(case, folder))
    tensors, recorded = checkpoints.read_tensors(case["path"])
    kept = {key: recorded[key] for key in ("_quantization_metadata",) if key in recorded}
    own = {key: value for key, value in tensors.items() if not key.startswith("out.")}
    save_file(own, folder / "m.safetensors", kept or None)
    return read_header(folder / "m.safetensors")


def config_of(case: Mapping[str, Any]) -> dict[str, Any] | None:
    """The config of a model whose shapes do not tell it, from the record of a case."""
    quantised = "ckpt_files" not in case
    if not quantised and not checkpoints.needs_config(case):
        return None
    recorded = metadata(case["case"] if quantised else case["path"])
    config: dict[str, Any] = json.loads(recorded["diffusers_config"])
    return config


class Checker:
    """What `loader.inspect` does, with modules built once for each config."""

    def __init__(self, config: Mapping[str, Any] | None) -> None:
        self._config = config
        self._shapes: dict[str, dict[str, torch.Size]] = {}

    def __call__(self, header: Header) -> frozenset[str]:
        """Raises a ModelError; else the keys that the file may lack."""
        detected = detect(header, self._config)
        key = f"{detected.family.name} {sorted(detected.config.items())}"
        if key not in self._shapes:
            self._shapes[key] = state_shapes(detected.family.build(detected.config))
        make_plan(detected, self._shapes[key])
        return frozenset(detected.prefix + name for name in detected.family.unread)


#: A first-and-last-frame file without it is, tensor for tensor, an image-to-video file.
TELLS_TWO_MODELS_APART = frozenset({"img_emb.emb_pos"})


def passes(check: Checker, header: Header, missing: str) -> bool:
    """Whether the file without that tensor would be loaded; a refusal must name the file."""
    tensors = {name: info for name, info in header.tensors.items() if name != missing}
    try:
        check(replace(header, tensors=tensors))
    except ModelError as error:
        return str(header.path) not in error.message
    return True


@pytest.mark.parametrize("name", files())
def test_one_tensor_more_or_less_is_never_loaded(name: str, tmp_path: Path) -> None:
    case = files()[name]
    check, header = Checker(config_of(case)), header_of(case, tmp_path)
    needed = header.tensors.keys() - check(header) - TELLS_TWO_MODELS_APART
    assert [key for key in sorted(needed) if passes(check, header, key)] == []
    for extra in ("surprise.weight", f"{next(iter(header.tensors)).rpartition('.')[0]}.surprise"):
        more = dict(header.tensors) | {extra: TensorInfo("BF16", (2,), 0, 4)}
        with pytest.raises(ModelError, match="surprise"):
            check(replace(header, tensors=more))


def test_all_checkpoints_are_covered() -> None:
    used = {path for case in files().values() for path in case.get("ckpt_files", ())}
    assert used == {entry["path"] for entry in entries("dit_checkpoint")}
    assert golden_root().is_dir()
