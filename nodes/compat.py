"""What differs between the ComfyUI versions this pack runs in."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import comfy.ops


def known(function: Callable[..., Any], **keywords: Any) -> dict[str, Any]:
    """Return those of `keywords` that `function` takes; older versions lack the cosmetic ones."""
    parameters = inspect.signature(function).parameters
    return {name: value for name, value in keywords.items() if name in parameters}


def current_node() -> str:
    """The id of the node that is executing in this thread, "" outside of one."""
    from comfy_execution.utils import get_executing_context

    context = get_executing_context()
    return "" if context is None else str(context.node_id)


def reads_quantised() -> bool:
    """Whether ComfyUI reads quantised files as the engine does.

    0.3.64 ignores most of their layouts without a word, and rounds the biases of scaled fp8 too.
    """
    return hasattr(comfy.ops, "mixed_precision_ops")


def measured(config: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> dict[str, int]:
    """The sizes of a FLUX.1 by its tensors' shapes: ComfyUI 0.3.64 takes the published one's for granted.

    config: what ComfyUI has detected; empty for any other model, and for a file without these tensors.
    """
    if config.get("image_model") != "flux" or not {"img_in.weight", "txt_in.weight"} <= shapes.keys():
        return {}
    hidden, context = shapes["txt_in.weight"]
    return {"hidden_size": hidden, "num_heads": hidden // sum(config["axes_dim"]), "context_in_dim": context}
