"""What no path to the engine can honour, refused by name when a sampler meets it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from ..protocol.errors import UnsupportedRequestError
from . import engine_decides, skipping

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
    "dit": "a custom node, or SkipLayerGuidanceDiT of another ComfyUI",
    "manual_cast_dtype": "ModelComputeDtype; choose the dtype in the Outboard Engine node instead",
}
#: Options that some diffusion transformer reads and that are neither patches nor data for the engine.
INNER_OPTIONS: Mapping[str, str] = {
    "stg_skip_self_attn": "a node for spatio-temporal guidance (STG)",
    "audio_embeds": "WanInfiniteTalkToVideo",
}
TIMESTEP_ZERO = "index_timestep_zero"
#: Attributes of the model that nodes replace and that both paths honour.
HONOURED_OBJECTS = frozenset({"model_sampling"})


def check_patcher(patcher: Any) -> None:
    """Raise UnsupportedRequestError for what on `patcher` changes code of the DiT, or its weights by code."""
    for key in patcher.object_patches:
        if key not in HONOURED_OBJECTS:
            _refuse(f"This MODEL replaces {key!r}", LIKELY_NODES.get(key, "a custom node"))
    for key in getattr(patcher, "weight_wrapper_patches", {}):
        _refuse(f"This MODEL wraps the weight {key!r}", "a custom node")


def check_options(transformer_options: Mapping[str, Any], reads: Callable[[str], bool]) -> None:
    """Raise UnsupportedRequestError for code that wants to run inside the DiT; warn of what has no effect.

    reads: whether the DiT reads the patches of a name, see inert.py.
    """
    patches = transformer_options.get("patches") or {}
    _check_callables({key: patches[key] for key in patches if reads(key)}, UNET_PATCHES, "patches")
    replaced = transformer_options.get("patches_replace") or {}
    known = UNET_REPLACEMENTS | ({skipping.TABLE} if skipping.only_skips(replaced) else frozenset())
    _check_callables(replaced, known, "patches_replace")
    for key, node in INNER_OPTIONS.items():
        if transformer_options.get(key) is not None:
            _refuse(f"This MODEL has the option {key!r} for its diffusion model", node)
    if transformer_options.get("optimized_attention_override") is not None:
        engine_decides.ATTENTION.once()


def check_conds(conds: Mapping[str, Any], reads: Callable[[str], bool]) -> None:
    """Raise UnsupportedRequestError for a way to place references that this ComfyUI takes for another one.

    conds: a guider's, as ComfyUI processed them. 0.3.64 does not check the node's widget.
    """
    for cond in (cond for side in conds.values() for cond in side or ()):
        method = cond.get("model_conds", {}).get("ref_latents_method")
        if method is not None and method.cond == TIMESTEP_ZERO and not reads(TIMESTEP_ZERO):
            _refuse(
                f"This ComfyUI has no reference method {TIMESTEP_ZERO!r}",
                "FluxKontextMultiReferenceLatentMethod",
            )


def _check_callables(found: Mapping[str, Any], inert: Collection[str], where: str) -> None:
    for key, patches in found.items():
        if patches and key not in inert:
            _refuse(
                f"This MODEL runs code inside the diffusion model ({where}[{key!r}])",
                LIKELY_NODES.get(key, "a custom node"),
            )


def _refuse(what: str, node: str) -> None:
    raise UnsupportedRequestError(f"{what}, set by {node}.", hint=STOCK)
