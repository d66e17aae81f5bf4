"""The catalog finds both kinds of files by name, size and header."""

from __future__ import annotations

from pathlib import Path

import pytest

from models import gguf_files
from models.files import flux1_shapes, random_tensors, save
from outboard.engine.models.header import read_header
from outboard.engine.supervisor.catalog import Catalog
from outboard.protocol.errors import CheckpointError, UnsupportedModelError
from outboard.protocol.messages.common import ModelRef


def reference(path: Path, **changed: object) -> ModelRef:
    header = read_header(path)
    return ModelRef.model_validate(
        {"name": path.name, "size": header.size, "digest": header.digest} | changed
    )


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    return Catalog({"diffusion_models": (tmp_path,)})


def test_a_gguf_file_is_found_by_its_header(catalog: Catalog, tmp_path: Path) -> None:
    path, _ = gguf_files.flux1(tmp_path / "m.gguf", "Q8_0")
    assert catalog.find(reference(path)) == path
    with pytest.raises(CheckpointError, match="header digest"):
        catalog.find(reference(path, digest="0" * 32))


def test_a_safetensors_file_is_found_by_its_header(catalog: Catalog, tmp_path: Path) -> None:
    path = save(tmp_path / "m.safetensors", random_tensors(flux1_shapes()))
    assert catalog.find(reference(path)) == path


def test_no_other_kind_of_file_is_opened(catalog: Catalog, tmp_path: Path) -> None:
    path = save(tmp_path / "m.ckpt", random_tensors({"a": (1,)}))
    with pytest.raises(UnsupportedModelError, match=r"not a \.safetensors or \.gguf file"):
        catalog.find(reference(path))
