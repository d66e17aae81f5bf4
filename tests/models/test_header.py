"""Reading a file's header: what is refused and how it is said, and that no weight is read for it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from models.files import FLUX1_DEV, describe, flux1_shapes, write, write_raw
from outboard.engine.models.header import TensorInfo, read_header
from outboard.engine.models.registry import detect
from outboard.protocol.errors import CheckpointError, ModelError, ModelNotFoundError, UnsupportedModelError


def entry(dtype: object = "F32", shape: object = (2,), offsets: object = (0, 8)) -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


def header(**entries: object) -> bytes:
    return json.dumps(entries).encode()


def cut(path: Path) -> Path:
    write(path, describe({"a": (64,)}))
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size - 1)
    return path


def longer(path: Path) -> Path:
    write(path, describe({"a": (64,)}))
    with path.open("ab") as file:
        file.write(b"\0")
    return path


BROKEN: dict[str, tuple[Callable[[Path], object], type[ModelError], str]] = {
    "empty": (lambda p: p.write_bytes(b""), CheckpointError, "only 0 bytes"),
    "too short": (lambda p: p.write_bytes(b"\1\0\0"), CheckpointError, "only 3 bytes"),
    "cut in the header": (
        lambda p: p.write_bytes(b"\xff\0\0\0\0\0\0\0{"),
        CheckpointError,
        "inside its header",
    ),
    "cut in the weights": (cut, CheckpointError, "1 of 128 bytes of weights are missing"),
    "bytes after the end": (longer, CheckpointError, "1 bytes after its last tensor"),
    "random bytes": (lambda p: p.write_bytes(b"\x13" * 200), CheckpointError, "not a safetensors file"),
    "bad JSON": (lambda p: write_raw(p, b'{"a": '), CheckpointError, "not valid JSON"),
    "deep JSON": (lambda p: write_raw(p, b"[" * 200_000), CheckpointError, "not valid JSON"),
    "not UTF-8": (lambda p: write_raw(p, b'{"\xff": 1}'), CheckpointError, "not valid JSON"),
    "a JSON list": (lambda p: write_raw(p, b"[1, 2]   "), CheckpointError, "not a JSON object"),
    "a key twice": (
        lambda p: write_raw(p, b'{"a": {"dtype": "U8"}, "a": {}}'),
        CheckpointError,
        "'a' appears twice",
    ),
    "HTML": (lambda p: p.write_bytes(b"<!DOCTYPE html><html>" + b" " * 99), CheckpointError, "web page"),
    "a git-lfs pointer": (
        lambda p: p.write_bytes(b"version https://git-lfs.github.com/spec/v1\n"),
        CheckpointError,
        "pointer",
    ),
    "GGUF of no version": (
        lambda p: p.write_bytes(b"GGUF" + b"\0" * 99),
        CheckpointError,
        "GGUF of version 0",
    ),
    "a pickle in a zip": (lambda p: p.write_bytes(b"PK\x03\x04" + b"\0" * 99), UnsupportedModelError, "zip"),
    "a pickle": (lambda p: p.write_bytes(b"\x80\x02}q\0" + b"\0" * 99), UnsupportedModelError, "pickle"),
    "overlap": (
        lambda p: write_raw(p, header(a=entry(), b=entry(offsets=(4, 12))), bytes(12)),
        CheckpointError,
        "overlaps",
    ),
    "a hole": (
        lambda p: write_raw(p, header(a=entry(), b=entry(offsets=(12, 20))), bytes(20)),
        CheckpointError,
        "hole",
    ),
    "size and shape differ": (
        lambda p: write_raw(p, header(a=entry(shape=(3,))), bytes(8)),
        CheckpointError,
        "fill",
    ),
    "unknown dtype": (
        lambda p: write_raw(p, header(a=entry("F7")), bytes(8)),
        CheckpointError,
        "unknown dtype 'F7'",
    ),
    "negative shape": (
        lambda p: write_raw(p, header(a=entry(shape=(-2,))), bytes(8)),
        CheckpointError,
        "shape",
    ),
    "fractional shape": (
        lambda p: write_raw(p, header(a=entry(shape=(2.0,))), bytes(8)),
        CheckpointError,
        "shape",
    ),
    "backward offsets": (
        lambda p: write_raw(p, header(a=entry(offsets=(8, 0))), bytes(8)),
        CheckpointError,
        "offsets",
    ),
    "no offsets": (
        lambda p: write_raw(p, header(a={"dtype": "F32", "shape": []})),
        CheckpointError,
        "offsets",
    ),
    "a tensor that is a number": (lambda p: write_raw(p, header(a=1)), CheckpointError, "not an object"),
    "odd metadata": (
        lambda p: write_raw(p, header(__metadata__={"a": 1})),
        CheckpointError,
        "table of strings",
    ),
    "a folder": (lambda p: p.mkdir(), CheckpointError, "cannot be read"),
    "nothing there": (lambda _: None, ModelNotFoundError, "no such file"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_file_is_refused_by_name_with_a_remedy(case: str, tmp_path: Path) -> None:
    make, error, said = BROKEN[case]
    path = tmp_path / "broken.safetensors"
    make(path)
    with pytest.raises(error) as caught:
        read_header(path)
    assert str(path) in caught.value.message
    assert said in caught.value.message
    assert caught.value.hint


def test_a_header_lists_tensors_and_metadata(tmp_path: Path) -> None:
    path = write(tmp_path / "m.safetensors", describe({"a": (2, 3), "b": ()}, b="F32"), {"k": "v"})
    found = read_header(path)
    assert dict(found.tensors) == {"a": TensorInfo("BF16", (2, 3), 0, 12), "b": TensorInfo("F32", (), 12, 16)}
    assert dict(found.metadata) == {"k": "v"}
    assert found.size == path.stat().st_size == found.data_start + 16


def test_the_digest_follows_the_header(tmp_path: Path) -> None:
    one = read_header(write(tmp_path / "1.safetensors", describe({"a": (2,)})))
    same = read_header(write(tmp_path / "2.safetensors", describe({"a": (2,)})))
    other = read_header(write(tmp_path / "3.safetensors", describe({"b": (2,)})))
    assert one.digest == same.digest != other.digest
    assert len(one.digest) == 32


def test_a_flux1_dev_file_of_24_gigabytes_is_recognised_at_once(tmp_path: Path) -> None:
    path = write(tmp_path / "flux1-dev.safetensors", describe(flux1_shapes(FLUX1_DEV)))
    assert path.stat().st_size > 23_800_000_000
    start = time.perf_counter()
    detected = detect(read_header(path))
    assert time.perf_counter() - start < 0.5
    assert detected.family.name == "flux1"
    assert dict(detected.config) == FLUX1_DEV


@pytest.mark.parametrize("length", [0x3C, 0x0280, 0x0480])
def test_a_header_whose_length_looks_like_another_format_is_read(tmp_path: Path, length: int) -> None:
    raw = header(a=entry()).replace(b" ", b"").ljust(length)
    assert len(raw) == length
    assert list(read_header(write_raw(tmp_path / "m.safetensors", raw, bytes(8))).tensors) == ["a"]
