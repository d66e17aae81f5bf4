"""GGUF files: their values are the gguf package's own, to the bit, and so are their errors told."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from gguf import GGMLQuantizationType, GGUFReader

from models import gguf_files
from models.files import TINY, file_shapes, flux1_shapes, random_tensors, save
from models.tiny import CONFIGS
from outboard.engine.models import reader
from outboard.engine.models.flux1 import to_checkpoint
from outboard.engine.models.gguf_header import BLOCKS
from outboard.engine.models.header import read_header
from outboard.engine.models.loader import inspect, load
from outboard.engine.models.quant import fill
from outboard.engine.models.registry import detect
from outboard.engine.models.wan import Wan
from outboard.protocol.errors import UnsupportedModelError, UnsupportedRequestError

CPU = torch.device("cpu")


@pytest.mark.parametrize("name", BLOCKS)
def test_every_type_unpacks_to_what_the_gguf_package_says(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "PIECE", 4096)
    monkeypatch.setattr(fill, "VALUES", 3000)  # pieces that end inside the parts of a fused layer
    path, values = gguf_files.flux1(tmp_path / "m.gguf", name)
    model = load(path, dtype=torch.float32, device=CPU)
    exported = to_checkpoint(model.module.state_dict())
    assert exported.keys() == values.keys()
    assert [key for key in values if not torch.equal(exported[key], values[key])] == []
    assert model.low_bit_layers == {f"{name} dequantised": 23}
    assert all(value.isfinite().all() for value in values.values())


@pytest.mark.parametrize("name", ["F16", "BF16", "F32"])
def test_a_gguf_file_of_plain_floats_loads(name: str, tmp_path: Path) -> None:
    path, values = gguf_files.flux1(tmp_path / "m.gguf", name)
    model = load(path, dtype=torch.float32, device=CPU)
    exported = to_checkpoint(model.module.state_dict())
    assert [key for key in values if not torch.equal(exported[key], values[key])] == []
    assert model.low_bit_layers == {}


def test_the_header_agrees_with_the_gguf_packages_reader(tmp_path: Path) -> None:
    path, _ = gguf_files.flux1(tmp_path / "m.gguf", "Q4_K")
    header, theirs = read_header(path), GGUFReader(path)
    assert header.metadata["general.architecture"] == "flux"
    assert {tensor.name for tensor in theirs.tensors} == set(header.tensors)
    for tensor in theirs.tensors:
        info = header.tensors[tensor.name]
        assert (info.dtype, info.shape) == (tensor.tensor_type.name, tuple(map(int, tensor.shape[::-1])))
        assert header.data_start + info.start == tensor.data_offset
        assert info.end - info.start == tensor.n_bytes


def test_the_same_model_is_recognised_in_both_formats(tmp_path: Path) -> None:
    tensors = random_tensors(flux1_shapes())
    plain = detect(read_header(save(tmp_path / "m.safetensors", tensors)))
    blocks = detect(read_header(gguf_files.write(tmp_path / "m.gguf", gguf_files.stored(tensors, "Q8_0"))))
    assert (plain.family.name, plain.config) == (blocks.family.name, blocks.config)
    assert blocks.config == TINY


def test_a_shape_that_gguf_cannot_express_is_restored(tmp_path: Path) -> None:
    tensors = random_tensors(file_shapes(Wan(), CONFIGS["wan"]))
    flat = {
        key: value.reshape(value.shape[0], -1) if value.ndim > 4 else value for key, value in tensors.items()
    }
    shapes = {key: tuple(value.shape) for key, value in tensors.items() if value.ndim > 4}
    assert shapes
    path = gguf_files.write(tmp_path / "m.gguf", gguf_files.stored(flat, "Q8_0"), "wan", shapes)
    model = load(path, dtype=torch.float32, device=CPU)
    assert model.family == "wan"
    patch = model.module.state_dict()["patch_embedding.weight"]
    assert torch.equal(patch, tensors["patch_embedding.weight"].float())


def test_the_digest_tells_files_apart_by_their_headers(tmp_path: Path) -> None:
    one, _ = gguf_files.flux1(tmp_path / "one.gguf", "Q8_0")
    other, _ = gguf_files.flux1(tmp_path / "other.gguf", "Q4_0")
    copy = tmp_path / "copy.gguf"
    copy.write_bytes(one.read_bytes())
    digests = [read_header(path).digest for path in (one, copy, other)]
    assert digests[0] == digests[1] != digests[2]
    assert len(digests[0]) == 32


def test_another_model_is_named_with_its_architecture(tmp_path: Path) -> None:
    kind = GGMLQuantizationType.F32
    arrays = {"blk.0.attn_q.weight": (torch.zeros(4, 32).numpy(), kind)}
    with pytest.raises(UnsupportedModelError, match="GGUF file of the architecture 'llama'"):
        inspect(gguf_files.write(tmp_path / "m.gguf", arrays, "llama"))


def test_a_weight_dtype_is_refused(tmp_path: Path) -> None:
    path, _ = gguf_files.flux1(tmp_path / "m.gguf", "Q8_0")
    with pytest.raises(UnsupportedRequestError, match="fp8_e5m2"):
        load(path, dtype=torch.float32, device=CPU, weight_dtype="fp8_e5m2")
