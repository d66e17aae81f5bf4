"""A changed weight put back into its few bits by ComfyUI's rules: new scales, and rounding by seeded chance.

Layouts and the rounding to fp8: https://github.com/Comfy-Org/comfy-kitchen (Apache-2.0). The seed of a weight
is the CRC-32 of its name in ComfyUI, so that each run rounds alike.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Any

import torch
from torch.nn import functional

from ..models.quant.fill import Stored
from ..models.quant.formats import round_up
from ..models.quant.kitchen import FP8, wrap
from ..models.quant.layer import Layer

SLICE = 4096 * 4096
"""Values of an nvfp4 weight that are rounded at a time; chance goes on from one slice to the next."""
FP4_MAX, FP8_MAX = 6.0, 448.0
OTHERS: Mapping[str, Mapping[str, str]] = {
    "int8_tensorwise": {"weight_scale": "scale"},
    "convrot_w4a4": {"weight_scale": "scale"},
    "asym_w4a8_int8": {
        "weight_s_rel": "scale",
        "weight_s_channel": "s_channel",
        "weight_codebook": "codebook",
    },
}
"""comfy-kitchen's own layouts: the parts in a file, and its names for them."""


def seed_of(name: str) -> int:
    """The seed that ComfyUI rounds the weight `name` with (its name in the diffusion model)."""
    return zlib.crc32(f"diffusion_model.{name}".encode("latin-1", "replace"))


def requantised(layer: Layer, before: Stored, values: torch.Tensor, seed: int) -> Stored:
    """`values` (rows, columns; fp32, overwritten) stored as `layer` is; `before`: its tensors until now."""
    if layer.format in FP8:
        return _fp8(layer, before, values, seed)
    if layer.format == "nvfp4":
        packed, scale, tensor_scale = _nvfp4(values, seed)
        found = {"weight_scale": scale, "weight_scale_2": tensor_scale}
    elif layer.format == "mxfp8":
        packed, scale = _mxfp8(values, seed)
        found = {"weight_scale": scale}
    else:
        packed, found = _by_kitchen(layer, before, values, seed)
    return packed.view(before[0].dtype), before[1] | {
        name: _as_before(part, before[1][name]) for name, part in found.items()
    }


def _as_before(part: torch.Tensor, before: torch.Tensor) -> torch.Tensor:
    if part.element_size() == before.element_size() == 1:
        return part.view(before.dtype).reshape(before.shape)
    return part.to(before.dtype).reshape(before.shape)


def round_by_chance(values: torch.Tensor, dtype: torch.dtype, seed: int) -> torch.Tensor:
    """`values` as fp8 `dtype`, up or down with the odds of their distances."""
    import comfy_kitchen

    chance = torch.Generator(device=values.device).manual_seed(seed)
    odds = torch.randint(0, 256, values.shape, dtype=torch.uint8, device=values.device, generator=chance)
    rounded: torch.Tensor = comfy_kitchen.stochastic_rounding_fp8(values, odds, dtype)
    return rounded


def _fp8(layer: Layer, before: Stored, values: torch.Tensor, seed: int) -> Stored:
    dtype = FP8[layer.format]
    if "weight_scale" not in before[1]:
        return round_by_chance(values, dtype, seed), before[1]
    scale = values.abs().amax() / torch.finfo(dtype).max
    packed = round_by_chance(values.mul_(1.0 / scale), dtype, seed)
    stored = before[1]["weight_scale"]
    return packed, before[1] | {"weight_scale": scale.to(stored.dtype).expand(stored.shape)}


def _nvfp4(values: torch.Tensor, seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    from comfy_kitchen.float_utils import to_blocked

    tensor_scale = values.abs().amax() / (FP8_MAX * FP4_MAX)
    values = _padded(values, 16)
    chance = torch.Generator(device=values.device).manual_seed(seed)
    rows = max(1, round(len(values) / max(1, values.numel() / SLICE)))
    pieces = [_nvfp4_rows(piece, tensor_scale, chance) for piece in values.split(rows)]
    scale = torch.cat([piece.view(torch.uint8) for _, piece in pieces]).view(torch.float8_e4m3fn)
    return torch.cat([piece for piece, _ in pieces]), to_blocked(scale, flatten=False), tensor_scale


def _nvfp4_rows(
    values: torch.Tensor, tensor_scale: torch.Tensor, chance: torch.Generator
) -> tuple[torch.Tensor, torch.Tensor]:
    """Two values a byte, and one fp8 scale for each 16."""
    blocks = values.unflatten(1, (-1, 16))
    scale = (blocks.abs().amax(-1) / FP4_MAX / tensor_scale).clamp(max=FP8_MAX).to(torch.float8_e4m3fn)
    scaled = (blocks / (tensor_scale * scale.float())[..., None]).flatten(1).nan_to_num()
    return _fp4_pairs(scaled, chance), scale


def _fp4_pairs(values: torch.Tensor, chance: torch.Generator) -> torch.Tensor:
    """Values as e2m1 codes, the first of each pair in the upper half of the byte.

    Noise of a step's width is added before values are rounded to the nearest, as ComfyUI does it, with its
    factor of 1.25 and its limits between the exponents.
    """
    sign = torch.signbit(values).to(torch.uint8) << 3
    exponent = (values.abs().log2() + 1.0).floor().clamp(0, 3)
    noise = torch.rand(values.shape, device=values.device, generator=chance) - 0.5
    size = (values + noise * 2 ** (exponent - 2.0) * 1.25).abs()
    exponent = (size.log2() + 1.1925).floor().clamp(0, 3)
    mantissa = torch.where(exponent > 0, (size / 2 ** (exponent - 1) - 1.0) * 2.0, size * 2.0).round()
    codes = sign | (exponent.to(torch.uint8) << 1) | mantissa.to(torch.uint8)
    return (codes[:, 0::2] << 4) | codes[:, 1::2]


def _mxfp8(values: torch.Tensor, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    from comfy_kitchen.float_utils import to_blocked

    values = _padded(values, 32)
    blocks = values.unflatten(1, (-1, 32))
    largest = blocks.abs().amax(-1)
    needed = (largest / FP8_MAX).clamp(min=2.0**-127)
    exponent = (needed.log2().ceil().to(torch.int32) + 127).clamp(0, 254)
    scale = torch.where(largest == 0, 1.0, (exponent << 23).view(torch.float32))
    packed = round_by_chance((blocks / scale[..., None]).flatten(1), torch.float8_e4m3fn, seed)
    code = torch.where(largest == 0, 0, exponent).to(torch.uint8)
    return packed, to_blocked(code, flatten=False)


def _by_kitchen(
    layer: Layer, before: Stored, values: torch.Tensor, seed: int
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    shape = (values.shape[0], values.shape[1])
    stored = wrap(layer.format, layer.options, before[0], before[1], shape, values.dtype)
    found: Any = stored.requantize_from_float(
        values, scale="recalculate", stochastic_rounding=seed, inplace_ops=True
    )
    parts = {part: getattr(found.params, field) for part, field in OTHERS[layer.format].items()}
    return found._qdata, {part: tensor for part, tensor in parts.items() if part in before[1]}


def _padded(values: torch.Tensor, multiple: int) -> torch.Tensor:
    rows, columns = (round_up(size, multiple) - size for size in values.shape)
    return functional.pad(values, (0, columns, 0, rows)) if rows or columns else values
