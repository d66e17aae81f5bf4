"""The dtype that weights are held in: UNETLoader's widget, and what ComfyUI does where it says default."""

from __future__ import annotations

from typing import Any, Literal

import comfy.cli_args
import torch
from comfy.cli_args import args

from ..engine.models.gguf_header import BLOCKS
from ..engine.models.registry import Detected

WeightDtype = Literal["default", "fp8_e4m3fn", "fp8_e4m3fn_fast", "fp8_e5m2"]
DEFAULT: WeightDtype = "default"
FP8: dict[str, torch.dtype] = {
    "fp8_e4m3fn": torch.float8_e4m3fn,
    "fp8_e4m3fn_fast": torch.float8_e4m3fn,
    "fp8_e5m2": torch.float8_e5m2,
}
WEIGHT_DTYPES: list[str] = [DEFAULT, *FP8]
FLAGS: dict[str, WeightDtype] = {"fp8_e4m3fn_unet": "fp8_e4m3fn", "fp8_e5m2_unet": "fp8_e5m2"}
"""ComfyUI's command line, which a widget other than default overrides."""


def wanted(widget: str, detected: Detected) -> str:
    """The widget's value, else what ComfyUI's command line says; GGUF files have no such choice there."""
    if widget == DEFAULT and not _in_blocks(detected):
        return next((dtype for flag, dtype in FLAGS.items() if getattr(args, flag, False)), DEFAULT)
    return widget


def held(model: Any, chosen: str) -> str:
    """What the engine is told: `chosen`, or for default the fp8 that ComfyUI would keep `model` in.

    It keeps a file of plain fp8 so where the device computes in fp8 or is short of memory, and then rounds
    the file's other weights too. `--fast fp8_matrix_mult` means the fast product for every model.
    """
    if chosen == DEFAULT:
        chosen = next((name for name, dtype in FP8.items() if dtype == model.get_dtype()), DEFAULT)
    return "fp8_e4m3fn_fast" if chosen == "fp8_e4m3fn" and _fast() else chosen


def is_quantised(detected: Detected) -> bool:
    """Whether the file says how its layers are stored; plain fp8 does not, and is a dtype like others."""
    return has_layouts(detected) or _in_blocks(detected)


def has_layouts(detected: Detected) -> bool:
    """Whether layers are stored in ComfyUI's own low-bit layouts, with scales beside them."""
    return any(layer.parts for layer in detected.layers.values())


def _in_blocks(detected: Detected) -> bool:
    return any(layer.format in BLOCKS for layer in detected.layers.values())


def _fast() -> bool:
    features = getattr(comfy.cli_args, "PerformanceFeature", None)
    return getattr(features, "Fp8MatrixMultiplication", None) in (args.fast or ())
