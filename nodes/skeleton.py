"""A MODEL from a file's header alone: every weight on the meta device, nothing of it in memory."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import comfy.model_detection
import comfy.model_management
import torch

from ..engine.models.header import Header
from ..engine.models.registry import Detected
from ..protocol.errors import UnsupportedModelError
from .compat import known, measured, reads_quantised
from .weight_dtype import has_layouts, is_quantised

TORCH_DTYPES = {
    "BF16": torch.bfloat16,
    "F16": torch.float16,
    "F32": torch.float32,
    "F64": torch.float64,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
}
"""What ComfyUI's choice of an inference dtype goes by."""
#: Small tensors whose values ComfyUI looks at to tell what a model is: Z-Image's norms, for its dtypes.
PROBED = re.compile(r"layers\.\d+\.ffn_norm1\.weight")
LARGEST_PROBED = 2**16


def build(
    header: Header,
    detected: Detected,
    dtype: torch.dtype | None,
    load_device: torch.device,
    offload_device: torch.device,
) -> Any:
    """ComfyUI's BaseModel for the file behind `header`, its DiT on meta and its model_sampling real.

    dtype: the one its weights would have in ComfyUI, None for what ComfyUI's own loader would choose. A
    quantised file has the shapes of its values. Raises UnsupportedModelError for a model that this ComfyUI
    does not know.
    """
    if has_layouts(detected) and not reads_quantised():
        raise UnsupportedModelError(
            f"{header.path}: this ComfyUI reads quantised files in another way than the engine.",
            hint="Update ComfyUI, or use the stock loader (UNETLoader).",
        )
    config, weights = _configured(header, detected)
    supported = list(config.supported_inference_dtypes)
    if dtype is None:
        dtype = _chosen(header, detected, supported)
    cast = comfy.model_management.unet_manual_cast(dtype, load_device, supported)
    config.set_inference_dtype(dtype, cast, **known(config.set_inference_dtype, device=load_device))
    try:
        model = config.get_model(weights, "", device=torch.device("meta"))
    except (AssertionError, KeyError, TypeError, ValueError) as error:
        raise _unknown(header, detected) from error
    if not _fits(model, config.process_unet_state_dict(dict(weights))):
        raise _unknown(header, detected)
    model.device = offload_device
    return model


def _configured(header: Header, detected: Detected) -> tuple[Any, dict[str, torch.Tensor]]:
    weights = {name: _weight(header, detected, name) for name in detected.contents}
    recognise = comfy.model_detection.model_config_from_unet
    config = recognise(weights, "", **known(recognise, metadata=dict(header.metadata)))
    if config is None:
        raise _unknown(header, detected)
    shapes = {name: tuple(weight.shape) for name, weight in weights.items()}
    config.unet_config.update(measured(config.unet_config, shapes))
    # Mixed-precision operations would have no weights until a file is read into them.
    config.quant_config = None
    return config, weights


def _fits(model: Any, weights: Mapping[str, torch.Tensor]) -> bool:
    """Whether every weight has the shape that this ComfyUI gives it, as its own loader demands.

    And whether it knows what the file marks by a tensor of a name like __this__: a network that is computed
    in another way.
    """
    there = model.diffusion_model.state_dict()
    marks = {name for name in weights if name.startswith("__")}
    both = weights.keys() & there.keys()
    return marks <= both and all(weights[name].shape == there[name].shape for name in both)


def _chosen(header: Header, detected: Detected, supported: Sequence[torch.dtype]) -> torch.dtype:
    """By the number of stored elements, and by the dtype of most of them unless layers are quantised."""
    sizes: Counter[str] = Counter()
    for key, info in header.tensors.items():
        if key.startswith(detected.prefix):
            sizes[info.dtype] += prod(info.shape)
    stored = None if is_quantised(detected) else TORCH_DTYPES.get(max(sizes, key=sizes.__getitem__))
    chosen: torch.dtype = comfy.model_management.unet_dtype(
        model_params=sizes.total(), supported_dtypes=list(supported), weight_dtype=stored
    )
    return chosen


def _weight(header: Header, detected: Detected, name: str) -> torch.Tensor:
    shape, info = detected.contents[name].shape, header.tensors[detected.stored[name]]
    dtype = TORCH_DTYPES.get(info.dtype)
    if dtype is None or not PROBED.fullmatch(name) or not 0 < info.end - info.start <= LARGEST_PROBED:
        return torch.empty(shape, dtype=dtype or torch.bfloat16, device="meta")
    with header.path.open("rb") as file:
        file.seek(header.data_start + info.start)
        raw = bytearray(file.read(info.end - info.start))
    values = torch.frombuffer(raw, dtype=dtype).reshape(shape)
    return values.float() if dtype.itemsize == 1 else values


def _unknown(header: Header, detected: Detected) -> UnsupportedModelError:
    return UnsupportedModelError(
        f"{header.path}: this ComfyUI does not know {detected.family.title} files of this size.",
        hint="Update ComfyUI.",
    )
