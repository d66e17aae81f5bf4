"""What a file says about its quantised layers: by a tensor each, by a table in its header, or by a marker.

comfy_quant               `<layer>.comfy_quant`, bytes of JSON {"format": ...}
_quantization_metadata    JSON {"layers": {<layer>: {"format": ...}}} in the header's metadata
scaled_fp8                older: an empty or small tensor of that name; its layers are those with
                          `scale_weight`, all fp8; two elements in it ask for products in full precision
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ....protocol.errors import CheckpointError, UnsupportedModelError
from ..header import Header, TensorInfo

METADATA = "_quantization_metadata"
COMFY_QUANT = ".comfy_quant"
MARKER = "scaled_fp8"
OLD_SCALES = {".scale_weight": ".weight_scale", ".scale_input": ".input_scale"}
MAX_DESCRIPTION_BYTES = 65536
REMEDY = "Download the file again, or use the bf16 file of the model."

Description = Mapping[str, Any]


@dataclass(frozen=True)
class Described:
    """Layers by name without prefix, each with its description, and the file's tensors by current names.

    names     current name -> key in the file, descriptions and markers left out
    old       whether the file is of the older kind, where every fp8 weight has a scale
    """

    layers: Mapping[str, Description]
    names: Mapping[str, str]
    old: bool


def describe(header: Header, names: Mapping[str, str], prefix: str) -> Described:
    """Collect the descriptions of `names` (key in the file -> name without `prefix`).

    Raises CheckpointError for one that is damaged or contradicts another.
    """
    layers = _from_tensors(header, names)
    for layer, description in _from_metadata(header, prefix).items():
        if layers.setdefault(layer, description) != description:
            raise CheckpointError(
                f"{header.path}: describes layer {layer!r} twice and differently: in comfy_quant and in "
                f"{METADATA}.",
                hint=REMEDY,
            )
    marker = next((key for key, name in names.items() if name == MARKER), None)
    current = {name: key for key, name in names.items() if not name.endswith(COMFY_QUANT) and name != MARKER}
    if marker is None or METADATA in header.metadata:
        return Described(layers, current, old=False)
    if layers:
        raise CheckpointError(
            f"{header.path}: is marked by {marker!r} as an old fp8 file, and has new descriptions of layers.",
            hint=REMEDY,
        )
    return _modernised(header, marker, current)


def _from_tensors(header: Header, names: Mapping[str, str]) -> dict[str, Description]:
    return {
        name.removesuffix(COMFY_QUANT): _parse(header, key, _bytes(header, key, header.tensors[key]))
        for key, name in names.items()
        if name.endswith(COMFY_QUANT)
    }


def _bytes(header: Header, key: str, info: TensorInfo) -> bytes:
    count = info.end - info.start
    if info.dtype != "U8" or len(info.shape) != 1 or count > MAX_DESCRIPTION_BYTES:
        raise CheckpointError(
            f"{header.path}: tensor {key!r} should be the text of a description, and is "
            f"{info.dtype}{list(info.shape)}.",
            hint=REMEDY,
        )
    with header.path.open("rb") as file:
        file.seek(header.data_start + info.start)
        return file.read(count)


def _parse(header: Header, where: str, raw: bytes | str) -> Description:
    try:
        description = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(
            f"{header.path}: the description {where!r} is not valid JSON ({error}).", hint=REMEDY
        ) from error
    if not isinstance(description, dict):
        raise CheckpointError(f"{header.path}: the description {where!r} is not a JSON object.", hint=REMEDY)
    return description


def _from_metadata(header: Header, prefix: str) -> dict[str, Description]:
    """The table's layers, whose names may have the prefix or not; those of an all-in-one file's other models
    keep theirs, and are left out."""
    if METADATA not in header.metadata:
        return {}
    layers = _parse(header, METADATA, header.metadata[METADATA]).get("layers")
    if not isinstance(layers, dict) or not all(isinstance(entry, dict) for entry in layers.values()):
        raise CheckpointError(f"{header.path}: {METADATA} has no table of layers.", hint=REMEDY)
    return {name.removeprefix(prefix): entry for name, entry in layers.items()}


def _modernised(header: Header, marker: str, names: Mapping[str, str]) -> Described:
    full = header.tensors[marker].shape == (2,)
    layers: dict[str, Description] = {}
    current: dict[str, str] = {}
    for name, key in names.items():
        ending = next((old for old in OLD_SCALES if name.endswith(old)), "")
        modern = name.removesuffix(ending) + OLD_SCALES[ending] if ending else name
        if modern in current:
            raise CheckpointError(
                f"{header.path}: holds the same scale as {current[modern]!r} and as {key!r}.", hint=REMEDY
            )
        current[modern] = key
        if ending == ".scale_weight":
            description = {"format": "float8_e4m3fn", "full_precision_matrix_mult": full}
            layers[name.removesuffix(ending)] = description
    if not layers:
        raise UnsupportedModelError(
            f"{header.path}: is marked by {marker!r} as scaled fp8, and has no scale at all.", hint=REMEDY
        )
    return Described(layers, current, old=True)
