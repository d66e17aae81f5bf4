"""GGUF files of a tiny FLUX.1, written by the gguf package, in any of its types."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from gguf import GGMLQuantizationType, GGUFWriter
from gguf.quants import dequantize, quantize

from models.files import TINY, flux1_shapes, random_tensors
from outboard.engine.models.gguf_header import BLOCKS

WIDE = TINY | {"num_attention_heads": 2}
"""So wide that whole blocks of 256 values make up its rows."""

Arrays = dict[str, tuple[np.ndarray, GGMLQuantizationType]]


def stored(tensors: Mapping[str, torch.Tensor], name: str) -> Arrays:
    """The tensors as the gguf package stores them: matrices of whole blocks in type `name`, others in F32."""
    kind = GGMLQuantizationType[name]
    arrays: Arrays = {}
    for key, tensor in tensors.items():
        array = tensor.float().numpy()
        if array.ndim == 2 and array.shape[1] % 256 == 0:
            arrays[key] = packed(array, kind), kind
        else:
            arrays[key] = array, GGMLQuantizationType.F32
    return arrays


def packed(array: np.ndarray, kind: GGMLQuantizationType) -> np.ndarray:
    """`array` in blocks; made-up ones of that type when the gguf package cannot quantise to it."""
    try:
        blocks: np.ndarray = quantize(array, kind)
    except NotImplementedError:
        return made_up(array.shape, kind.name)
    return blocks


def made_up(shape: tuple[int, ...], name: str) -> np.ndarray:
    """Random blocks whose every fp16 is small and finite, wherever the type has its scales."""
    count, size = BLOCKS[name]
    random = np.random.default_rng(shape[0] + size)
    blocks = random.integers(0, 256, (shape[0] * shape[1] // count, size), dtype=np.uint8)
    blocks[:, 1::2] &= 0x9F  # the upper byte of an fp16: exponents below 2**-7
    return blocks.reshape(shape[0], -1)


def write(
    path: Path,
    arrays: Arrays,
    architecture: str = "flux",
    shapes: Mapping[str, tuple[int, ...]] | None = None,
) -> Path:
    """A file of these tensors; `shapes` are the original ones of those that GGUF cannot express."""
    writer = GGUFWriter(path, architecture)
    for key, shape in (shapes or {}).items():
        writer.add_array(f"comfy.gguf.orig_shape.{key}", shape)
    for key, (array, kind) in arrays.items():
        writer.add_tensor(key, array, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def values(arrays: Arrays) -> dict[str, torch.Tensor]:
    """What the gguf package itself makes of them."""
    return {key: torch.from_numpy(dequantize(array, kind)) for key, (array, kind) in arrays.items()}


def flux1(path: Path, name: str) -> tuple[Path, dict[str, torch.Tensor]]:
    """A FLUX.1 file whose matrices are of type `name`, and its values."""
    arrays = stored(random_tensors(flux1_shapes(WIDE)), name)
    return write(path, arrays), values(arrays)
