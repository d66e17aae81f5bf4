"""Diffusion transformers against the raw outputs of a real ComfyUI: every recorded case of our families."""

from __future__ import annotations

import functools
import json
import os
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from golden import checkpoints
from golden.errors import ErrorTable
from golden.folder import SUMMARY, entries, golden_root
from outboard.engine.models.header import read_header
from outboard.engine.models.loader import inspect, load
from outboard.engine.models.model import Model
from outboard.engine.models.registry import FAMILIES
from outboard.protocol.errors import UnsupportedModelError

pytestmark = pytest.mark.golden

# MKL's exp differs between processors in the last bit, and a guidance of 3300 multiplies that to 7e-6 of the
# output, in ComfyUI too. Its compatible branch is the same everywhere; MKL reads this at its first call.
os.environ.setdefault("MKL_CBWR", "COMPATIBLE")

OURS = {family.transformer for family in FAMILIES}


@functools.cache
def metadata(path: str) -> Mapping[str, str]:
    return read_header(golden_root() / path).metadata


def cases(supported: bool) -> list[dict[str, Any]]:
    every = entries("dit_case")
    return [case for case in every if (metadata(case["path"])["diffusers_class"] in OURS) is supported]


def name_of(case: Mapping[str, Any]) -> str:
    return f"{case['family']}-{case['case']}"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("golden")


@functools.lru_cache(maxsize=4)
def loaded(path: Path, dtype: torch.dtype, config: str | None) -> Model:
    return load(path, dtype=dtype, device=torch.device("cpu"), config=json.loads(config) if config else None)


def model_of(case: Mapping[str, Any], dtype: torch.dtype, folder: Path) -> Model:
    config = metadata(case["path"])["diffusers_config"] if checkpoints.needs_config(case) else None
    return loaded(checkpoints.write(case, folder), dtype, config)


def resolve(value: Any, tensors: Mapping[str, Tensor]) -> Any:
    """Literal values, with {"tensor": name} replaced by the tensor."""
    if isinstance(value, dict):
        return (
            tensors[value["tensor"]]
            if "tensor" in value
            else {k: resolve(v, tensors) for k, v in value.items()}
        )
    if isinstance(value, list):
        return [resolve(item, tensors) for item in value]
    return value


def answer(model: Model, tensors: Mapping[str, Tensor], recorded: Mapping[str, str]) -> Tensor:
    """What our model says to the recorded call."""
    given = resolve(json.loads(recorded["raw_kwargs"]), tensors)
    given |= json.loads(recorded["transformer_options"])
    return model.predict(given.pop("x"), given.pop("timestep"), given)


def distance(ours: Tensor, stock: Tensor) -> float:
    return float((ours.double() - stock.double()).norm() / stock.double().norm())


@pytest.mark.parametrize("case", cases(supported=True), ids=name_of)
def test_fp32_matches_stock(case: Mapping[str, Any], folder: Path, errors: ErrorTable) -> None:
    tensors, recorded = checkpoints.read_tensors(case["path"])
    v = answer(model_of(case, torch.float32, folder), tensors, recorded)
    assert v.dtype == torch.float32
    error = distance(v, tensors["out.v"])
    errors.add(case["family"], case["case"], "fp32", error)
    assert error < case["tol_fp32_rel"]
    sigma = tensors["in.sigma"].reshape(-1, *[1] * (v.ndim - 1))
    x0 = tensors["in.x"][:, : v.shape[1]] - sigma * v
    assert distance(x0, tensors["out.x0"]) < case["tol_fp32_rel"]


@pytest.mark.parametrize("case", cases(supported=True), ids=name_of)
def test_bf16_matches_stock(case: Mapping[str, Any], folder: Path, errors: ErrorTable) -> None:
    tensors, recorded = checkpoints.read_tensors(case["path"])
    v = answer(model_of(case, torch.bfloat16, folder), tensors, recorded)
    assert v.dtype == torch.bfloat16
    error = distance(v, tensors["out.v_bf16"])
    errors.add(case["family"], case["case"], "bf16", error)
    assert error < case["tol_bf16_rel"]


def test_what_is_compared_and_what_is_not_is_counted(pytestconfig: pytest.Config) -> None:
    ours, others = cases(supported=True), cases(supported=False)
    assert ours
    # The small folder of a plain clone has no room for every family.
    absent = OURS - {metadata(case["path"])["diffusers_class"] for case in ours}
    missing = Counter(case["family"] for case in others)
    listed = ", ".join(f"{family} ({count})" for family, count in sorted(missing.items())) or "none"
    counted = f"{len(ours)} of {len(ours) + len(others)} cases"
    line = (
        f"transformers: {counted} compared with stock; not in the engine: {listed}; "
        f"not in this folder: {', '.join(sorted(absent)) or 'none'}"
    )
    pytestconfig.stash.setdefault(SUMMARY, []).append(line)


def test_a_family_we_do_not_run_is_refused_rather_than_loaded_wrongly(folder: Path) -> None:
    for family, case in {case["family"]: case for case in cases(supported=False)}.items():
        with pytest.raises(UnsupportedModelError) as caught:
            inspect(checkpoints.write(case, folder))
        assert "looks like" in caught.value.message, family
