"""Files that must not load: each refused before a weight is read, by name, with the key and what to do."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, GGUFWriter

from models import gguf_files
from models.files import describe, flux1_shapes, random_tensors, save, write, write_raw
from models.quant import files
from models.quant.files import BLOCK, FUSED, description
from outboard.engine.models.loader import load
from outboard.protocol.errors import CheckpointError, ModelError, UnsupportedModelError

Tensors = dict[str, torch.Tensor]
Change = Mapping[str, torch.Tensor | None]

WEIGHT, SCALE, QUANT = f"{BLOCK}.weight", f"{BLOCK}.weight_scale", f"{BLOCK}.comfy_quant"
FP8 = torch.float8_e4m3fn


def changed(name: str, change: Change) -> Callable[[Path], object]:
    """A file with one layer in format `name`, and then tensors put in or taken away."""

    def make(path: Path) -> None:
        tensors = files.model({BLOCK: name})[0] | dict(change)
        files.save(path, {key: value for key, value in tensors.items() if value is not None})

    return make


def described(fields: Mapping[str, object]) -> Change:
    return {QUANT: description(**fields)}


def old(change: Change) -> Callable[[Path], object]:
    """A file of the older kind, with one layer in scaled fp8."""

    def make(path: Path) -> None:
        tensors = files.plain() | {"scaled_fp8": torch.zeros(0, dtype=FP8)}
        tensors |= {WEIGHT: tensors[WEIGHT].to(FP8), f"{BLOCK}.scale_weight": torch.tensor(0.5)}
        both = tensors | dict(change)
        files.save(path, {key: value for key, value in both.items() if value is not None})

    return make


def listed(metadata: str, change: Change | None = None) -> Callable[[Path], object]:
    """A file whose header has `metadata` for a table of quantised layers."""

    def make(path: Path) -> None:
        tensors = files.model({BLOCK: "float8_e4m3fn"})[0] | {QUANT: None} | dict(change or {})
        kept = {key: value for key, value in tensors.items() if value is not None}
        files.save(path, kept, {"_quantization_metadata": metadata})

    return make


def table(**layers: object) -> str:
    return json.dumps({"layers": {key.replace("__", "."): value for key, value in layers.items()}})


def plain(change: Change) -> Callable[[Path], object]:
    def make(path: Path) -> None:
        tensors = files.plain() | dict(change)
        files.save(path, {key: value for key, value in tensors.items() if value is not None})

    return make


def gguf(
    change: Mapping[str, tuple[np.ndarray, GGMLQuantizationType] | None], architecture: str = "flux"
) -> Callable[[Path], object]:
    def make(path: Path) -> None:
        arrays = gguf_files.stored(random_tensors(flux1_shapes(gguf_files.WIDE)), "Q8_0") | dict(change)
        kept = {key: value for key, value in arrays.items() if value is not None}
        gguf_files.write(path, kept, architecture)

    return make


def edited(make: Callable[[Path], object], edit: Callable[[bytes], bytes]) -> Callable[[Path], object]:
    """A file whose bytes are changed after it is made."""

    def both(path: Path) -> None:
        make(path)
        path.write_bytes(edit(path.read_bytes()))

    return both


def gguf_header(version: int, tensors: int, pairs: int, rest: bytes = b"") -> Callable[[Path], object]:
    return lambda path: path.write_bytes(b"GGUF" + struct.pack("<IQQ", version, tensors, pairs) + rest)


def gguf_text(text: bytes) -> bytes:
    return struct.pack("<Q", len(text)) + text


def gguf_tensor(name: bytes, shape: tuple[int, ...], kind: int, start: int) -> bytes:
    sizes = struct.pack(f"<{len(shape)}Q", *shape)
    return gguf_text(name) + struct.pack("<I", len(shape)) + sizes + struct.pack("<IQ", kind, start)


def wrong_original_shape(path: Path) -> None:
    writer = GGUFWriter(path, "flux")
    writer.add_array("comfy.gguf.orig_shape.img_in.weight", (3, 3))
    writer.add_tensor("img_in.weight", np.zeros((4, 4), dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def adapter(path: Path) -> None:
    shapes = {f"{FUSED}.lora_A.weight": (4, 256), f"{FUSED}.lora_B.weight": (768, 4)}
    save(path, random_tensors(shapes))


def unpadded(path: Path) -> None:
    entries = describe(
        flux1_shapes() | {"img_in.weight": (128, 15), "img_in.weight_scale": (128, 4)},
        **{"img_in.weight": "U8", "img_in.weight_scale": "F8_E4M3"},
    )
    metadata = {"_quantization_metadata": table(img_in={"format": "nvfp4"})}
    write(path, entries, metadata)


def bits(*shape: int, dtype: torch.dtype = torch.uint8) -> torch.Tensor:
    return torch.zeros(shape, dtype=dtype)


Case = tuple[Callable[[Path], object], type[ModelError], str]
Q8 = GGMLQuantizationType.Q8_0
BROKEN: dict[str, Case] = {
    # A description and what it describes
    "fp8: no scale": (changed("float8_e4m3fn", {SCALE: None}), CheckpointError, f"lacks {SCALE}"),
    "fp8: no weight": (changed("float8_e4m3fn", {WEIGHT: None}), CheckpointError, f"no tensor '{WEIGHT}'"),
    "fp8: no description": (
        changed("float8_e4m3fn", {QUANT: None}),
        CheckpointError,
        f"{SCALE}' is a scale of a layer that nothing describes",
    ),
    "fp8: scale of two": (
        changed("float8_e4m3fn", {SCALE: torch.ones(2)}),
        CheckpointError,
        f"{SCALE}' is F32[2], and float8_e4m3fn needs BF16/F16/F32 of shape [] or [1]",
    ),
    "fp8: scale per column": (
        changed("float8_e4m3fn", {SCALE: torch.ones(1, 256)}),
        CheckpointError,
        f"{SCALE}' is F32[1, 256]",
    ),
    "fp8: scale in integers": (
        changed("float8_e4m3fn", {SCALE: torch.tensor(1)}),
        CheckpointError,
        f"{SCALE}' is I64[]",
    ),
    "fp8: weight in bf16": (
        changed("float8_e4m3fn", {WEIGHT: bits(256, 256, dtype=torch.bfloat16)}),
        CheckpointError,
        f"{WEIGHT}' is BF16[256, 256], which is no weight of float8_e4m3fn",
    ),
    "fp8: weight in int8": (
        changed("float8_e4m3fn", {WEIGHT: bits(256, 256, dtype=torch.int8)}),
        CheckpointError,
        "is I8[256, 256], which is no weight of float8_e4m3fn",
    ),
    "fp8: weight of one dimension": (
        changed("float8_e4m3fn", {WEIGHT: bits(256, dtype=torch.uint8).view(FP8)}),
        CheckpointError,
        "is F8_E4M3[256], which is no weight",
    ),
    "fp8: weight of another shape": (
        changed("float8_e4m3fn", {WEIGHT: bits(256, 128).view(FP8)}),
        CheckpointError,
        f"1 wrong shape: {WEIGHT} (is [256, 128], needs [256, 256])",
    ),
    "fp8: a part of nvfp4": (
        changed("float8_e4m3fn", {f"{BLOCK}.weight_scale_2": torch.tensor(1.0)}),
        CheckpointError,
        f"has '{BLOCK}.weight_scale_2', which that format does not know",
    ),
    "input scale of a plain layer": (
        plain({f"{BLOCK}.input_scale": torch.tensor(1.0)}),
        CheckpointError,
        "is a scale of a layer that nothing describes",
    ),
    "a tag nobody knows": (
        changed("float8_e4m3fn", described({"format": "nvfp3"})),
        UnsupportedModelError,
        f"layer '{BLOCK}' is quantised as 'nvfp3', which is not known here",
    ),
    "no tag": (changed("float8_e4m3fn", described({})), UnsupportedModelError, "is quantised as 'None'"),
    "a description that is no JSON": (
        changed("float8_e4m3fn", {QUANT: torch.tensor(list(b"{]"), dtype=torch.uint8)}),
        CheckpointError,
        f"the description '{QUANT}' is not valid JSON",
    ),
    "a description that is no object": (
        changed("float8_e4m3fn", {QUANT: torch.tensor(list(b"[]"), dtype=torch.uint8)}),
        CheckpointError,
        "is not a JSON object",
    ),
    "a description that is no text": (
        changed("float8_e4m3fn", {QUANT: torch.zeros(3)}),
        CheckpointError,
        f"'{QUANT}' should be the text of a description, and is F32[3]",
    ),
    "nvfp4: no scale of the tensor": (
        changed("nvfp4", {f"{BLOCK}.weight_scale_2": None}),
        CheckpointError,
        f"lacks {BLOCK}.weight_scale_2",
    ),
    "nvfp4: no scales of blocks": (changed("nvfp4", {SCALE: None}), CheckpointError, f"lacks {SCALE}"),
    "nvfp4: scales not interleaved": (
        changed("nvfp4", {SCALE: bits(255, 16)}),
        CheckpointError,
        "is U8[255, 16], and nvfp4 needs F8_E4M3/U8 of shape [256, 16]",
    ),
    "nvfp4: scales in floats": (
        changed("nvfp4", {SCALE: bits(256, 16, dtype=torch.float32)}),
        CheckpointError,
        "is F32[256, 16], and nvfp4 needs",
    ),
    "nvfp4: packed, and nothing says how": (
        changed("nvfp4", {QUANT: None, SCALE: None, f"{BLOCK}.weight_scale_2": None}),
        CheckpointError,
        f"'{WEIGHT}' is packed (U8), and nothing says how",
    ),
    "nvfp4: scales, and nothing says of what": (
        changed("nvfp4", {QUANT: None}),
        CheckpointError,
        "is a scale of a layer that nothing describes",
    ),
    "nvfp4: not padded": (unpadded, CheckpointError, "not padded to multiples of 16: [128, 30]"),
    "nvfp4: smoothing of another width": (
        changed("nvfp4", {f"{BLOCK}.pre_quant_scale": torch.ones(255)}),
        CheckpointError,
        f"'{BLOCK}.pre_quant_scale' is F32[255]",
    ),
    "mxfp8: no scale": (changed("mxfp8", {SCALE: None}), CheckpointError, f"of mxfp8 lacks {SCALE}"),
    "mxfp8: scales of another format": (
        changed("mxfp8", {SCALE: bits(256, 8).view(FP8)}),
        CheckpointError,
        "is F8_E4M3[256, 8], and mxfp8 needs F8_E8M0/U8",
    ),
    "int8: no scale": (changed("int8_tensorwise", {SCALE: None}), CheckpointError, f"lacks {SCALE}"),
    "int8: packed, and nothing says how": (
        changed("int8_tensorwise", {QUANT: None, SCALE: None}),
        CheckpointError,
        f"'{WEIGHT}' is packed (I8), and nothing says how",
    ),
    "int8: a scale per row without its dimension": (
        changed("int8_tensorwise", {SCALE: torch.ones(256)}),
        CheckpointError,
        f"'{SCALE}' is F32[256]",
    ),
    "int8: a rotation of no such size": (
        changed(
            "int8_tensorwise",
            described({"format": "int8_tensorwise", "convrot": True, "convrot_groupsize": 100}),
        ),
        CheckpointError,
        "256 columns and rotates 100 of them together",
    ),
    "int8: a rotation wider than the weight": (
        changed(
            "int8_tensorwise",
            described({"format": "int8_tensorwise", "convrot": True, "convrot_groupsize": 1024}),
        ),
        CheckpointError,
        "rotates 1024 of them",
    ),
    "w4a4: an unknown product": (
        changed("convrot_w4a4", described({"format": "convrot_w4a4", "linear_dtype": "int2"})),
        CheckpointError,
        "multiplies in 'int2', which is not known here",
    ),
    "w4a4: a scale for all": (
        changed("convrot_w4a4", {SCALE: torch.ones(())}),
        CheckpointError,
        "is F32[], and convrot_w4a4 needs BF16/F16/F32 of shape [256]",
    ),
    "w4a8: no scale per row": (
        changed("asym_w4a8_int8", {f"{BLOCK}.weight_s_channel": None}),
        CheckpointError,
        f"lacks {BLOCK}.weight_s_channel",
    ),
    "w4a8: other groups": (
        changed("asym_w4a8_int8", described({"format": "asym_w4a8_int8", "group_size": 32})),
        CheckpointError,
        "groups of 32 values; only 16 are known here",
    ),
    "w4a8: half a codebook": (
        changed("asym_w4a8_int8", {f"{BLOCK}.weight_codebook": torch.ones(8)}),
        CheckpointError,
        "is F32[8], and asym_w4a8_int8 needs BF16/F16/F32 of shape [16]",
    ),
    # The older kind
    "old: no marker": (
        old({"scaled_fp8": None}),
        CheckpointError,
        f"'{BLOCK}.scale_weight' is a scale of a layer that nothing describes",
    ),
    "old: no scale": (
        old({f"{BLOCK}.scale_weight": None}),
        UnsupportedModelError,
        "is marked by 'scaled_fp8' as scaled fp8, and has no scale at all",
    ),
    "old: one scale of two": (
        old({f"{FUSED}.weight": bits(768, 256).view(FP8)}),
        CheckpointError,
        f"'{FUSED}.weight' of a scaled fp8 file has no scale",
    ),
    "old: no weight": (old({WEIGHT: None}), CheckpointError, f"no tensor '{WEIGHT}'"),
    "old: input scale alone": (
        old({f"{FUSED}.scale_input": torch.tensor(1.0)}),
        CheckpointError,
        f"'{FUSED}.scale_input' is a scale of a layer that nothing describes",
    ),
    "old and new at once": (
        old({QUANT: description(format="float8_e4m3fn")}),
        CheckpointError,
        "as an old fp8 file, and has new descriptions",
    ),
    "one scale under both names": (
        old({SCALE: torch.tensor(0.5)}),
        CheckpointError,
        "holds the same scale as",
    ),
    # The table in the header
    "a table that is no JSON": (listed("{"), CheckpointError, "'_quantization_metadata' is not valid JSON"),
    "a table without layers": (listed("{}"), CheckpointError, "has no table of layers"),
    "a table of strings": (listed('{"layers": {"a": "b"}}'), CheckpointError, "has no table of layers"),
    "a table naming another layer": (
        listed(table(nowhere={"format": "float8_e4m3fn"})),
        CheckpointError,
        "describes the quantised layer 'nowhere' and has no tensor 'nowhere.weight'",
    ),
    "a table that leaves a layer out": (
        listed(table()),
        CheckpointError,
        f"'{SCALE}' is a scale of a layer that nothing describes",
    ),
    "two descriptions that differ": (
        listed(table(**{BLOCK: {"format": "float8_e5m2"}}), {QUANT: description(format="float8_e4m3fn")}),
        CheckpointError,
        f"describes layer '{BLOCK}' twice and differently",
    ),
    # Others' layouts
    "SVDQuant": (plain({f"{BLOCK}.wscales": torch.ones(4, 4)}), UnsupportedModelError, "SVDQuant"),
    "bitsandbytes": (plain({f"{WEIGHT}.absmax": torch.ones(4)}), UnsupportedModelError, "bitsandbytes"),
    "packed integers": (plain({f"{BLOCK}.qweight": bits(4, 4)}), UnsupportedModelError, "packed integers"),
    "a weight in I32": (
        plain({WEIGHT: bits(256, 256, dtype=torch.int32)}),
        UnsupportedModelError,
        f"stores tensor '{WEIGHT}' as I32",
    ),
    # Whole files
    "HTML": (lambda p: p.write_bytes(b"\n<!DOCTYPE html><html>" + b" " * 99), CheckpointError, "web page"),
    "a quantised file cut short": (
        edited(changed("nvfp4", {}), lambda raw: raw[:-7]),
        CheckpointError,
        "cut short: 7 of",
    ),
    "a LoRA": (adapter, UnsupportedModelError, "looks like a LoRA"),
    "a text encoder": (
        lambda p: save(p, random_tensors({"text_model.encoder.layers.0.mlp.fc1.weight": (2, 2)})),
        UnsupportedModelError,
        "looks like a text encoder (CLIP)",
    ),
    "nothing": (lambda p: write_raw(p, b"{}"), UnsupportedModelError, "of no family known here"),
    "an unquantised tensor too few": (
        changed("nvfp4", {"img_in.bias": None}),
        CheckpointError,
        "1 missing: img_in.bias",
    ),
    "an unquantised tensor too many": (
        changed("nvfp4", {"img_in.extra": torch.ones(3)}),
        CheckpointError,
        "1 unused: img_in.extra",
    ),
    # GGUF
    "GGUF: version 1": (gguf_header(1, 0, 0), CheckpointError, "GGUF of version 1"),
    "GGUF: big endian": (gguf_header(3 << 24, 0, 0), CheckpointError, "GGUF of version 50331648"),
    "GGUF: cut in the header": (
        edited(gguf({}), lambda raw: raw[:500]),
        CheckpointError,
        "cut short inside its header (500 bytes)",
    ),
    "GGUF: cut in the weights": (
        edited(gguf({}), lambda raw: raw[:-1000]),
        CheckpointError,
        "bytes of weights are missing",
    ),
    "GGUF: bytes after the end": (
        edited(gguf({}), lambda raw: raw + bytes(64)),
        CheckpointError,
        "64 bytes after its last tensor",
    ),
    "GGUF: a name that is no text": (
        gguf_header(3, 0, 1, gguf_text(b"\xff")),
        CheckpointError,
        "a name that is not text",
    ),
    "GGUF: a field of no known type": (
        gguf_header(3, 0, 1, gguf_text(b"a") + struct.pack("<I", 99)),
        CheckpointError,
        "a field of the unknown type 99",
    ),
    "GGUF: lists of lists": (
        gguf_header(3, 0, 1, gguf_text(b"a") + struct.pack("<IIQ", 9, 9, 1)),
        CheckpointError,
        "a list of lists",
    ),
    "GGUF: a type nobody knows": (
        gguf_header(3, 1, 0, gguf_tensor(b"a", (32,), 77, 0)),
        CheckpointError,
        "'a' in the GGUF type 77",
    ),
    "GGUF: blocks not full": (
        gguf_header(3, 1, 0, gguf_tensor(b"a", (33,), 8, 0)),
        CheckpointError,
        "'a' the shape [33], which Q8_0 does not fill",
    ),
    "GGUF: too many dimensions": (
        gguf_header(3, 1, 0, gguf_tensor(b"a", (1,) * 5, 0, 0)),
        CheckpointError,
        "'a' 5 dimensions",
    ),
    "GGUF: one name twice": (
        gguf_header(3, 2, 0, gguf_tensor(b"a", (1,), 0, 0) + gguf_tensor(b"a", (1,), 0, 32) + bytes(64)),
        CheckpointError,
        "'a' twice",
    ),
    "GGUF: overlapping tensors": (
        gguf_header(3, 2, 0, gguf_tensor(b"a", (16,), 0, 0) + gguf_tensor(b"b", (16,), 0, 32) + bytes(128)),
        CheckpointError,
        "'b' overlaps its neighbour",
    ),
    "GGUF: another original shape": (wrong_original_shape, CheckpointError, "original shape [3, 3]"),
    "GGUF: another model": (
        lambda p: gguf_files.write(p, {"blk.0.a": (np.zeros((2, 32), np.float32), Q8.F32)}, "llama"),
        UnsupportedModelError,
        "GGUF file of the architecture 'llama'",
    ),
    "GGUF: a tensor too few": (gguf({"img_in.bias": None}), CheckpointError, "1 missing: img_in.bias"),
    "GGUF: a tensor too many": (
        gguf({"surprise": (np.zeros(3, np.float32), GGMLQuantizationType.F32)}),
        CheckpointError,
        "1 unused: surprise",
    ),
    "GGUF: a vector in blocks": (
        gguf({"img_in.bias": (gguf_files.packed(np.zeros((1, 256), np.float32), Q8)[0], Q8)}),
        CheckpointError,
        "'img_in.bias' of shape [256] is stored in blocks that cross its rows",
    ),
}


def test_there_are_many() -> None:
    assert len(BROKEN) >= 40


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_file_is_refused_by_name_with_a_remedy(case: str, tmp_path: Path) -> None:
    make, error, said = BROKEN[case]
    path = tmp_path / "model.safetensors"
    make(path)
    calls: list[tuple[int, int]] = []
    with pytest.raises(error) as caught:
        load(path, dtype=torch.float32, device=torch.device("cpu"), progress=lambda *done: calls.append(done))
    assert said in caught.value.message
    assert str(path) in caught.value.message
    assert caught.value.hint
    assert not calls


@pytest.mark.parametrize("name", files.LAYOUTS)
def test_the_files_would_load_unbroken(name: str, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    changed(name, {})(path)
    load(path, dtype=torch.float32, device=torch.device("cpu"))


@pytest.mark.parametrize(
    "make", [old({}), listed(table(**{BLOCK: {"format": "float8_e4m3fn"}})), plain({}), gguf({})]
)
def test_the_other_files_would_load_unbroken(make: Callable[[Path], object], tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    make(path)
    load(path, dtype=torch.float32, device=torch.device("cpu"))
