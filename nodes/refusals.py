"""What no path to the engine can honour, refused by name when a sampler meets it."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from typing import Any

from ..protocol.errors import UnsupportedRequestError

STOCK = "Not yet supported; use the stock loader (UNETLoader) for this graph."

#: Patches that only U-Nets read; a diffusion transformer ignores them in stock ComfyUI too.
UNET_PATCHES = frozenset(
    {
        "attn2_output_patch",
        "input_block_patch",
        "input_block_patch_after_skip",
        "output_block_patch",
        "middle_patch",
        "middle_block_patch",
        "middle_block_after_patch",
        "emb_patch",
        "forward_timestep_embed_patch",
    }
)
UNET_REPLACEMENTS = frozenset({"attn1", "attn2"})

LIKELY_NODES: Mapping[str, str] = {
    "attn1_patch": "FluxKVCache",
    "attn1_output_patch": "NAGuidance",
    "attn2_patch": "WanInfiniteTalkToVideo",
    "post_input": "FluxKVCache or a USO model patch",
    "double_block": "a ControlNet model patch (QwenImageDiffsynthControlnet, ZImageFunControlnet)",
    "noise_refiner": "ZImageFunControlnet",
    "diffusion_model.params.default_ref_method": "FluxKVCache",
    "diffusion_model.default_ref_method": "FluxKVCache",
    "dit": "SkipLayerGuidanceDiT or SkipLayerGuidanceDiTSimple",
    "manual_cast_dtype": "ModelComputeDtype; choose the dtype in the Outboard Engine node instead",
}
#: Options that some diffusion transformer reads and that are neither patches nor data for the engine.
INNER_OPTIONS: Mapping[str, str] = {
    "stg_skip_self_attn": "a node for spatio-temporal guidance (STG)",
    "audio_embeds": "WanInfiniteTalkToVideo",
}
#: Attributes of the model that nodes replace and that both paths honour.
HONOURED_OBJECTS = frozenset({"model_sampling"})


def check_patcher(patcher: Any) -> None:
    """Raise UnsupportedRequestError for what on `patcher` changes code of the DiT, or its weights by code."""
    for key in patcher.object_patches:
        if key not in HONOURED_OBJECTS:
            _refuse(f"This MODEL replaces {key!r}", LIKELY_NODES.get(key, "a custom node"))
    for key in getattr(patcher, "weight_wrapper_patches", {}):
        _refuse(f"This MODEL wraps the weight {key!r}", "a custom node")
    if patcher.additional_models.get("multigpu"):
        _refuse("This MODEL is split over several GPUs by ComfyUI", "MultiGPU_WorkUnits")


def check_options(transformer_options: Mapping[str, Any]) -> None:
    """Raise UnsupportedRequestError for code that wants to run inside the DiT; warn of what has no effect."""
    _check_callables(transformer_options.get("patches") or {}, UNET_PATCHES, "patches")
    _check_callables(transformer_options.get("patches_replace") or {}, UNET_REPLACEMENTS, "patches_replace")
    for key, node in INNER_OPTIONS.items():
        if transformer_options.get(key) is not None:
            _refuse(f"This MODEL has the option {key!r} for its diffusion model", node)
    if transformer_options.get("optimized_attention_override") is not None:
        _ATTENTION_WARNING.once()


def _check_callables(found: Mapping[str, Any], inert: Collection[str], where: str) -> None:
    for key, patches in found.items():
        if patches and key not in inert:
            _refuse(
                f"This MODEL runs code inside the diffusion model ({where}[{key!r}])",
                LIKELY_NODES.get(key, "a custom node"),
            )


def _refuse(what: str, node: str) -> None:
    raise UnsupportedRequestError(f"{what}, set by {node}.", hint=STOCK)


class _Warning:
    """A log line that appears once per process."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._told = False

    def once(self) -> None:
        if not self._told:
            self._told = True
            logging.warning(self._text)


_ATTENTION_WARNING = _Warning(
    "Outboard: the attention chosen by ModelAttentionBackend has no effect; the engine has its own."
)
