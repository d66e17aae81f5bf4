"""Stock ComfyUI made to detect small files of families whose published sizes it takes for granted."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import comfy.model_detection

Shape = tuple[int, ...]
#: The shape of a tensor of the file by its name.
Shapes = Callable[[str], Shape]


def count(state_dict: Mapping[str, Any], prefix: str) -> int:
    """How many blocks `<prefix>N.` there are."""
    return len({key[len(prefix) :].split(".", 1)[0] for key in state_dict if key.startswith(prefix)})


def ernie(state_dict: Mapping[str, Any], shape: Shapes) -> dict[str, Any]:
    hidden = shape("x_embedder.proj.weight")[0]
    return {
        "hidden_size": hidden,
        "num_attention_heads": hidden // shape("layers.0.self_attention.norm_q.weight")[0],
        "num_layers": count(state_dict, "layers."),
        "ffn_hidden_size": shape("layers.0.mlp.up_proj.weight")[0],
        "text_in_dim": shape("text_proj.weight")[1],
    }


def flux(state_dict: Mapping[str, Any], shape: Shapes) -> dict[str, Any]:
    """Old versions take the sizes of the published FLUX.1 for granted."""
    hidden, context = shape("txt_in.weight")
    return {"hidden_size": hidden, "num_heads": hidden // 128, "context_in_dim": context}


def qwen(state_dict: Mapping[str, Any], shape: Shapes) -> dict[str, Any]:
    return {
        "num_attention_heads": shape("img_in.weight")[0] // 128,
        "joint_attention_dim": shape("txt_in.weight")[1],
    }


def z_image(state_dict: Mapping[str, Any], shape: Shapes) -> dict[str, Any]:
    heads = shape("cap_embedder.1.weight")[0] // 128
    return {
        "n_heads": heads,
        "n_kv_heads": heads,
        "n_refiner_layers": count(state_dict, "noise_refiner."),
        "axes_dims": [32, 48, 48],
        "axes_lens": [1536, 512, 512],
        "rope_theta": 256.0,
        "ffn_dim_multiplier": 8.0 / 3.0,
        "z_image_modulation": True,
        "time_scale": 1000.0,
        "pad_tokens_multiple": 32,
    }


def chroma(state_dict: Mapping[str, Any], shape: Shapes) -> dict[str, Any]:
    return {
        **flux(state_dict, shape),
        "out_dim": shape("img_in.weight")[0],
        "hidden_dim": shape("distilled_guidance_layer.in_proj.weight")[0],
        "n_layers": count(state_dict, "distilled_guidance_layer.layers."),
    }


SMALL: Mapping[str, Callable[[Mapping[str, Any], Shapes], dict[str, Any]]] = {
    "ernie": ernie,
    "flux": flux,
    "qwen_image": qwen,
    "lumina2": z_image,
    "chroma": chroma,
}


def install() -> None:
    """Complete what ComfyUI detects by what the file's shapes say."""
    stock = comfy.model_detection.detect_unet_config

    def detect(state_dict: Any, prefix: str, **keywords: Any) -> Any:
        config = stock(state_dict, prefix, **keywords)
        small = SMALL.get(config.get("image_model", "")) if config else None
        if small is not None:
            found = {key.removeprefix(prefix): value for key, value in state_dict.items()}
            config.update(small(found, lambda name: tuple(found[name].shape)))
        return config

    comfy.model_detection.detect_unet_config = detect
