"""Which tensors of a file are quantised weights: every piece of every one accounted for, or an error."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NoReturn

from ....protocol.errors import CheckpointError, UnsupportedModelError
from ..gguf_header import BLOCKS
from ..header import Header, TensorInfo
from .description import REMEDY, Described, Description, describe
from .formats import FORMATS, Format
from .layer import Layer, Options

PARTS = frozenset(
    name for entry in FORMATS.values() for name in (*entry.required, *entry.optional)
) | frozenset({"scale_weight", "scale_input"})
PLAIN_FP8 = {"F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2"}
PACKED = frozenset({"U8", "I8", "F4", "F6_E2M3", "F6_E3M2"})
FOREIGN = {
    ".wscales": "SVDQuant",
    ".qweight": "packed integers",
    ".absmax": "bitsandbytes",
    ".quant_map": "bitsandbytes",
}
ROTATION = 256
ROTATIONS = frozenset({4, 16, 64, 256, 1024})


@dataclass(frozen=True)
class Stored:
    """The tensors of a file as values: `names` (name -> key in the file) without the parts of quantised ones,
    and the quantised `layers` by the name of their weight."""

    names: Mapping[str, str]
    layers: Mapping[str, Layer]

    def infos(self, header: Header) -> dict[str, TensorInfo]:
        """Every tensor by name, quantised ones with the shape of their values."""
        return {
            name: self.layers[name].info() if name in self.layers else header.tensors[key]
            for name, key in self.names.items()
        }


def stored(header: Header, names: Mapping[str, str], prefix: str) -> Stored:
    """Sort the tensors `names` (key in the file -> name without `prefix`) into weights and their parts.

    Raises UnsupportedModelError for a format that is not known here, CheckpointError for a weight without its
    scale, a scale without its weight or description, or parts of a wrong dtype or shape.
    """
    described = describe(header, names, prefix)
    layers: dict[str, Layer] = {}
    used: set[str] = set()
    for name, description in described.layers.items():
        layer = _layer(header, described, name, description)
        if layer is not None:
            layers[f"{name}.weight"] = layer
            used |= {f"{name}.{part}" for part in layer.parts}
    left = {name: key for name, key in described.names.items() if name not in used}
    layers |= _undescribed(header, left, layers, described)
    return Stored(left, layers)


def _fault(header: Header, what: str) -> NoReturn:
    raise CheckpointError(f"{header.path}: {what}.", hint=REMEDY)


def _layer(header: Header, described: Described, name: str, description: Description) -> Layer | None:
    """The layer `name`; None for one of another model in an all-in-one file."""
    known, tag = described.names, str(description.get("format"))
    key = known.get(f"{name}.weight")
    if key is None:
        if f"{name}.weight" in header.tensors:
            return None
        _fault(header, f"describes the quantised layer {name!r} and has no tensor '{name}.weight'")
    if tag not in FORMATS:
        raise UnsupportedModelError(
            f"{header.path}: layer {name!r} is quantised as {tag!r}, which is not known here.",
            hint=f"Use a file of one of these formats: {', '.join(FORMATS)}; or the bf16 file.",
        )
    entry, weight = FORMATS[tag], header.tensors[key]
    if weight.dtype not in entry.stored or len(weight.shape) != 2:
        _fault(header, f"tensor {key!r} is {weight.dtype}{list(weight.shape)}, which is no weight of {tag}")
    shape = weight.shape[0], weight.shape[1] * entry.packed
    if shape[0] % entry.tile or shape[1] % entry.tile:
        _fault(header, f"tensor {key!r} of {tag} is not padded to multiples of {entry.tile}: {list(shape)}")
    parts = {part: header.tensors[known[f"{name}.{part}"]] for part in _present(known, name)}
    _check_parts(header, key, entry, shape, parts)
    return Layer(key, tag, weight, shape, parts, _options(header, name, entry, shape, description))


def _present(names: Mapping[str, str], layer: str) -> Iterator[str]:
    return (part for part in sorted(PARTS) if f"{layer}.{part}" in names)


def _check_parts(
    header: Header, key: str, entry: Format, shape: tuple[int, int], parts: Mapping[str, TensorInfo]
) -> None:
    stem = key.removesuffix("weight")
    missing = sorted(entry.required.keys() - parts.keys())
    if missing:
        _fault(header, f"weight {key!r} of {entry.name} lacks {', '.join(stem + part for part in missing)}")
    expected = {**entry.required, **entry.optional}
    for part, info in parts.items():
        if part not in expected:
            _fault(
                header, f"weight {key!r} of {entry.name} has {stem + part!r}, which that format does not know"
            )
        shapes = expected[part].shapes(*shape)
        if info.dtype not in expected[part].dtypes or info.shape not in shapes:
            right = " or ".join(str(list(one)) for one in sorted(shapes))
            _fault(
                header,
                f"tensor {stem + part!r} is {info.dtype}{list(info.shape)}, and {entry.name} needs "
                f"{'/'.join(sorted(expected[part].dtypes))} of shape {right}",
            )


def _options(
    header: Header, name: str, entry: Format, shape: tuple[int, int], description: Description
) -> Options:
    inner = description.get("params")
    given = {**(inner if isinstance(inner, dict) else {}), **description}
    rotated = entry.name in {"convrot_w4a4", "asym_w4a8_int8"} or bool(given.get("convrot", False))
    rotation = given.get("convrot_groupsize", ROTATION) if rotated else 0
    product = given.get("linear_dtype", "int4")
    if rotated and (rotation not in ROTATIONS or shape[1] % rotation):
        _fault(header, f"layer {name!r} has {shape[1]} columns and rotates {rotation!r} of them together")
    if product not in {"int4", "int8"}:
        _fault(header, f"layer {name!r} multiplies in {product!r}, which is not known here")
    if entry.name == "asym_w4a8_int8" and given.get("group_size", 16) != 16:
        _fault(header, f"layer {name!r} has groups of {given['group_size']!r} values; only 16 are known here")
    return Options(bool(given.get("full_precision_matrix_mult", False)), rotation, product)


def _undescribed(
    header: Header, names: Mapping[str, str], known: Mapping[str, Layer], described: Described
) -> dict[str, Layer]:
    """Weights that need no description: plain fp8 and GGUF's blocks. All else in few bits is refused."""
    layers: dict[str, Layer] = {}
    for name, key in names.items():
        info = header.tensors[key]
        _refuse_foreign(header, name, key)
        if name.rsplit(".", 1)[-1] in PARTS:
            _fault(header, f"tensor {key!r} is a scale of a layer that nothing describes as quantised")
        if name in known:
            continue
        if info.dtype in PACKED:
            _fault(header, f"tensor {key!r} is packed ({info.dtype}), and nothing says how")
        if info.dtype in BLOCKS:
            layers[name] = _blocks(header, key, info)
        elif info.dtype in PLAIN_FP8 and name.endswith(".weight") and len(info.shape) == 2:
            if described.old:
                _fault(header, f"weight {key!r} of a scaled fp8 file has no scale")
            layers[name] = Layer(key, PLAIN_FP8[info.dtype], info, info.shape)
    return layers


def _refuse_foreign(header: Header, name: str, key: str) -> None:
    for ending, layout in FOREIGN.items():
        if name.endswith(ending):
            raise UnsupportedModelError(
                f"{header.path}: is quantised as {layout} ({key!r}), which is not known here.",
                hint="Use a file in ComfyUI's own formats, GGUF, or the bf16 file of the model.",
            )


def _blocks(header: Header, key: str, info: TensorInfo) -> Layer:
    row = math.prod(info.shape[1:])
    if len(info.shape) < 2 or row % BLOCKS[info.dtype][0]:
        _fault(header, f"tensor {key!r} of shape {list(info.shape)} is stored in blocks that cross its rows")
    return Layer(key, info.dtype, info, info.shape)
