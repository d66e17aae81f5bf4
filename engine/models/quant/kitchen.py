"""Quantised weights as comfy-kitchen's tensors: their values, and products in few bits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import torch

from ....protocol.errors import UnsupportedModelError
from .formats import GROUP, INTEGER
from .layer import Options

Parts = Mapping[str, torch.Tensor]
LAYOUTS = {
    "float8_e4m3fn": "TensorCoreFP8Layout",
    "float8_e5m2": "TensorCoreFP8Layout",
    "nvfp4": "TensorCoreNVFP4Layout",
    "mxfp8": "TensorCoreMXFP8Layout",
    "int8_tensorwise": "TensorWiseINT8Layout",
    "convrot_w4a4": "TensorCoreConvRotW4A4Layout",
    "asym_w4a8_int8": "AsymW4A8Int8Layout",
}
FP8 = {"float8_e4m3fn": torch.float8_e4m3fn, "float8_e5m2": torch.float8_e5m2}
CAPABILITY = {"float8_e4m3fn": (8, 9), "nvfp4": (10, 0)}
"""NVIDIA generations that multiply in a format. Not mxfp8, whose product no CPU computes to compare with."""


@cache
def layout_of(name: str) -> Any:
    """comfy-kitchen's class for format `name`. Raises UnsupportedModelError when there is none."""
    hint = "Run `outboard setup` again, or install comfy-kitchen>=0.2.31 where the engine runs."
    try:
        # Not at the top: plain models load without it.
        from comfy_kitchen import tensor
    except ImportError as error:
        raise UnsupportedModelError(
            f"Weights in {name} need comfy-kitchen, which cannot be imported ({error}).", hint=hint
        ) from error
    found = getattr(tensor, LAYOUTS[name], None)
    if found is None:
        raise UnsupportedModelError(f"The installed comfy-kitchen does not know {name}.", hint=hint)
    return found


def _quantised() -> Any:
    from comfy_kitchen.tensor import QuantizedTensor

    return QuantizedTensor


def kernel_available(name: str, device: torch.device) -> bool:
    """Whether `device` multiplies in format `name` by itself.

    Integer formats run anywhere: the CPU computes what a GPU's kernel would. Others need an NVIDIA GPU of the
    right generation.
    """
    if name in INTEGER:
        return True
    if device.type != "cuda" or torch.version.hip is not None or name not in CAPABILITY:
        return False
    return torch.cuda.get_device_capability(device) >= CAPABILITY[name]


def wrap(
    name: str,
    options: Options,
    packed: torch.Tensor,
    parts: Parts,
    shape: tuple[int, int],
    dtype: torch.dtype,
) -> Any:
    """The weight `packed` (rows as stored) and its scales as comfy-kitchen has them, of that shape."""
    layout = layout_of(name)
    fields = {"orig_dtype": dtype, "orig_shape": shape, **FIELDS[name](packed, parts, options)}
    return _quantised()(packed, layout.__name__, layout.Params(**fields))


def values(
    name: str, options: Options, packed: torch.Tensor, parts: Parts, dtype: torch.dtype
) -> torch.Tensor:
    """The weight's values (rows as stored, columns with padding) in `dtype`.

    Without a scale `packed` holds the values themselves. Computed as ComfyUI does in that dtype.
    """
    if "weight_scale" not in parts and name in FP8:
        return packed.to(dtype)
    columns = packed.shape[1] * (
        2 if packed.dtype in {torch.uint8, torch.int8} and name in TWO_PER_BYTE else 1
    )
    result: torch.Tensor = wrap(name, options, packed, parts, (packed.shape[0], columns), dtype).dequantize()
    return result


def product(x: torch.Tensor, weight: Any, bias: torch.Tensor | None, name: str, parts: Parts) -> torch.Tensor:
    """x (...,columns) times the wrapped `weight`, in few bits: x is rounded too, per ComfyUI's rules."""
    if name in INTEGER:
        return torch.nn.functional.linear(x, weight, bias)
    rounding: dict[str, Any] = {}
    if name in FP8:
        one = torch.ones((), device=x.device, dtype=torch.float32)
        rounding = {"scale": parts.get("input_scale", one), "dtype": FP8[name]}
    elif "input_scale" in parts and name == "nvfp4":
        rounding = {"scale": parts["input_scale"]}
    flat = _quantised().from_float(x.reshape(-1, x.shape[-1]), LAYOUTS[name], **rounding)
    return torch.nn.functional.linear(flat, weight, bias).reshape(*x.shape[:-1], -1)


def _scaled(packed: torch.Tensor, parts: Parts, _options: Options) -> dict[str, Any]:
    one = torch.ones((), device=packed.device, dtype=torch.float32)
    return {"scale": parts.get("weight_scale", one)}


def _nvfp4(_packed: torch.Tensor, parts: Parts, _options: Options) -> dict[str, Any]:
    scale = parts["weight_scale_2"].reshape(())
    return {"scale": scale, "block_scale": parts["weight_scale"].view(torch.float8_e4m3fn)}


def _mxfp8(_packed: torch.Tensor, parts: Parts, _options: Options) -> dict[str, Any]:
    return {"scale": parts["weight_scale"].view(torch.float8_e8m0fnu)}


def _int8(_packed: torch.Tensor, parts: Parts, options: Options) -> dict[str, Any]:
    rotated = {"convrot": True, "convrot_groupsize": options.rotation} if options.rotation else {}
    return {"scale": parts["weight_scale"], **rotated}


def _w4a4(_packed: torch.Tensor, parts: Parts, options: Options) -> dict[str, Any]:
    return {
        "scale": parts["weight_scale"],
        "convrot_groupsize": options.rotation,
        "linear_dtype": options.product,
    }


def _w4a8(_packed: torch.Tensor, parts: Parts, options: Options) -> dict[str, Any]:
    relative = parts["weight_s_rel"]
    return {
        "scale": relative.view(torch.float8_e4m3fn) if relative.dtype == torch.uint8 else relative,
        "s_channel": parts["weight_s_channel"],
        "codebook": parts.get("weight_codebook"),
        "group_size": GROUP,
        "convrot_groupsize": options.rotation,
    }


TWO_PER_BYTE = frozenset({"nvfp4", "convrot_w4a4", "asym_w4a8_int8"})
FIELDS: Mapping[str, Callable[[torch.Tensor, Parts, Options], dict[str, Any]]] = {
    "float8_e4m3fn": _scaled,
    "float8_e5m2": _scaled,
    "nvfp4": _nvfp4,
    "mxfp8": _mxfp8,
    "int8_tensorwise": _int8,
    "convrot_w4a4": _w4a4,
    "asym_w4a8_int8": _w4a8,
}
