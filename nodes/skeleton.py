"""A MODEL from a file's header alone: every weight on the meta device, nothing of it in memory."""

from __future__ import annotations

import re
from typing import Any

import comfy.model_detection
import comfy.model_management
import comfy.utils
import torch

from ..engine.models.header import Header, TensorInfo
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
#: Small tensors whose values ComfyUI looks at to tell what a model is: Z-Image's norms, for its dtypes.
PROBED = re.compile(r"layers\.\d+\.ffn_norm1\.weight")
LARGEST_PROBED = 2**16


def build(
    header: Header, dtype: torch.dtype | None, load_device: torch.device, offload_device: torch.device
) -> Any:
    """ComfyUI's BaseModel for the file behind `header`, its DiT on meta and its model_sampling real.

    dtype: the inference dtype, None for the one ComfyUI's own loader would choose. Raises
    UnsupportedModelError for a family that the engine or this ComfyUI does not know, CheckpointError for
    a damaged file.
    """
    detected = detect(header)
    config, weights = _configured(header, detected)
    supported = list(config.supported_inference_dtypes)
    if dtype is None:
        dtype = comfy.model_management.unet_dtype(
            model_params=comfy.utils.calculate_parameters(weights),
            supported_dtypes=supported,
            weight_dtype=comfy.utils.weight_dtype(weights),
        )
    cast = comfy.model_management.unet_manual_cast(dtype, load_device, supported)
    config.set_inference_dtype(dtype, cast, **known(config.set_inference_dtype, device=load_device))
    try:
        model = config.get_model(weights, "", device=torch.device("meta"))
    except (AssertionError, TypeError, ValueError) as error:
        raise _unknown(header, detected) from error
    model.device = offload_device
    return model


def _configured(header: Header, detected: Detected) -> tuple[Any, dict[str, torch.Tensor]]:
    weights = {name: _weight(header, name, info) for name, info in detected.contents.items()}
    recognise = comfy.model_detection.model_config_from_unet
    config = recognise(weights, "", **known(recognise, metadata=dict(header.metadata)))
    if config is None:
        raise _unknown(header, detected)
    # Mixed-precision operations would have no weights until a file is read into them.
    config.quant_config = None
    return config, weights


def _weight(header: Header, name: str, info: TensorInfo) -> torch.Tensor:
    dtype = TORCH_DTYPES[info.dtype]
    if not PROBED.fullmatch(name) or not 0 < info.end - info.start <= LARGEST_PROBED:
        return torch.empty(info.shape, dtype=dtype, device="meta")
    with header.path.open("rb") as file:
        file.seek(header.data_start + info.start)
        raw = bytearray(file.read(info.end - info.start))
    return torch.frombuffer(raw, dtype=dtype).reshape(info.shape)


def _unknown(header: Header, detected: Detected) -> UnsupportedModelError:
    return UnsupportedModelError(
        f"{header.path}: this ComfyUI does not know {detected.family.title} files of this size.",
        hint="Update ComfyUI.",
    )
