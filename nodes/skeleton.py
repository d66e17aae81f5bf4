"""A MODEL from a file's header alone: every weight on the meta device, nothing of it in memory."""

from __future__ import annotations

from typing import Any

import comfy.model_detection
import comfy.model_management
import comfy.utils
import torch

from ..engine.models.header import Header
from ..engine.models.registry import Detected, detect
from ..protocol.errors import UnsupportedModelError
from .compat import known

TORCH_DTYPES = {
    "BF16": torch.bfloat16,
    "F16": torch.float16,
    "F32": torch.float32,
    "F64": torch.float64,
    "I64": torch.int64,
    "I32": torch.int32,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}


def build(
    header: Header, dtype: torch.dtype | None, load_device: torch.device, offload_device: torch.device
) -> Any:
    """ComfyUI's BaseModel for the file behind `header`, its DiT on meta and its model_sampling real.

    dtype: the inference dtype, None for the one ComfyUI's own loader would choose. Raises
    UnsupportedModelError for a family that the engine or this ComfyUI does not know, CheckpointError for
    a damaged file.
    """
    config, weights = _configured(header, detect(header))
    supported = list(config.supported_inference_dtypes)
    if dtype is None:
        dtype = comfy.model_management.unet_dtype(
            model_params=comfy.utils.calculate_parameters(weights),
            supported_dtypes=supported,
            weight_dtype=comfy.utils.weight_dtype(weights),
        )
    cast = comfy.model_management.unet_manual_cast(dtype, load_device, supported)
    config.set_inference_dtype(dtype, cast, **known(config.set_inference_dtype, device=load_device))
    model = config.get_model(weights, "", device=torch.device("meta"))
    model.device = offload_device
    return model


def _configured(header: Header, detected: Detected) -> tuple[Any, dict[str, torch.Tensor]]:
    weights = {
        name: torch.empty(info.shape, dtype=TORCH_DTYPES[info.dtype], device="meta")
        for name, info in detected.contents.items()
    }
    config = comfy.model_detection.model_config_from_unet(weights, "")
    if config is None:
        raise UnsupportedModelError(
            f"{header.path}: this ComfyUI does not know {detected.family.title} files of this size.",
            hint="Update ComfyUI.",
        )
    # Mixed-precision operations would have no weights until a file is read into them.
    config.quant_config = None
    return config, weights
