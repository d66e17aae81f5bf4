"""Nodes that only the tests use: conditioning without a text encoder, latents, masks, counted progress."""

from __future__ import annotations

from typing import Any

import comfy.model_detection
import comfy.utils
import torch
from aiohttp import web
from comfy_execution.utils import get_executing_context
from server import PromptServer

CALLS: dict[str, dict[str, int]] = {}


class TestConditioning:
    """Random text: context [1, tokens, width] and pooled [1, pooled], the same for the same seed."""

    CATEGORY = "outboard/tests"
    FUNCTION = "make"
    RETURN_TYPES = ("CONDITIONING",)

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        number = ("INT", {"default": 0, "min": 0, "max": 2**31})
        return {"required": {"seed": number, "tokens": number, "width": number, "pooled": number}}

    def make(self, seed: int, tokens: int, width: int, pooled: int) -> tuple[Any, ...]:
        generator = torch.Generator().manual_seed(seed)
        context = torch.randn(1, tokens, width, generator=generator)
        extra = {"pooled_output": torch.randn(1, pooled, generator=generator)} if pooled else {}
        return ([[context, extra]],)


class TestLatent:
    """A random latent [batch, channels, height, width], the same for the same seed."""

    CATEGORY = "outboard/tests"
    FUNCTION = "make"
    RETURN_TYPES = ("LATENT",)

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        number = ("INT", {"default": 1, "min": 0, "max": 2**31})
        return {"required": dict.fromkeys(("seed", "batch", "channels", "height", "width"), number)}

    def make(self, seed: int, batch: int, channels: int, height: int, width: int) -> tuple[Any, ...]:
        shape = (batch, channels, height, width)
        if seed == 0:
            return ({"samples": torch.zeros(shape)},)
        return ({"samples": torch.randn(shape, generator=torch.Generator().manual_seed(seed))},)


class TestMask:
    """A mask [1, height, width] that rises from 0 on the left to 1 on the right."""

    CATEGORY = "outboard/tests"
    FUNCTION = "make"
    RETURN_TYPES = ("MASK",)

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        number = ("INT", {"default": 8, "min": 1, "max": 4096})
        return {"required": {"height": number, "width": number}}

    def make(self, height: int, width: int) -> tuple[Any, ...]:
        return (torch.linspace(0, 1, width).expand(1, height, width).contiguous(),)


class TestImage:
    """A random picture [1, height, width, 3]."""

    CATEGORY = "outboard/tests"
    FUNCTION = "make"
    RETURN_TYPES = ("IMAGE",)

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        number = ("INT", {"default": 64, "min": 1, "max": 4096})
        return {"required": {"height": number, "width": number}}

    def make(self, height: int, width: int) -> tuple[Any, ...]:
        return (torch.rand(1, height, width, 3, generator=torch.Generator().manual_seed(7)),)


NODE_CLASS_MAPPINGS = {
    "OutboardTestConditioning": TestConditioning,
    "OutboardTestLatent": TestLatent,
    "OutboardTestMask": TestMask,
    "OutboardTestImage": TestImage,
}


def count_progress() -> None:
    """Count the progress calls of each node, and how many brought a preview."""
    stock = comfy.utils.ProgressBar.update_absolute

    def update_absolute(self: Any, value: float, total: Any = None, preview: Any = None) -> None:
        context = get_executing_context()
        counts = CALLS.setdefault(str(context.node_id) if context else "", {"calls": 0, "previews": 0})
        counts["calls"] += 1
        counts["previews"] += preview is not None
        stock(self, value, total, preview)

    comfy.utils.ProgressBar.update_absolute = update_absolute


def small_ernie() -> None:
    """Let stock ComfyUI detect ERNIE files of any size, which it takes to be of the published one."""
    stock = comfy.model_detection.detect_unet_config

    def detect(state_dict: Any, prefix: str, **keywords: Any) -> Any:
        config = stock(state_dict, prefix, **keywords)
        if config and config.get("image_model") == "ernie":
            layers = {
                key.removeprefix(prefix).split(".")[1] for key in state_dict if ".self_attention." in key
            }
            hidden = state_dict[f"{prefix}x_embedder.proj.weight"].shape[0]
            heads = hidden // state_dict[f"{prefix}layers.0.self_attention.norm_q.weight"].shape[0]
            config.update(
                hidden_size=hidden,
                num_attention_heads=heads,
                num_layers=len(layers),
                ffn_hidden_size=state_dict[f"{prefix}layers.0.mlp.up_proj.weight"].shape[0],
                text_in_dim=state_dict[f"{prefix}text_proj.weight"].shape[1],
            )
        return config

    comfy.model_detection.detect_unet_config = detect


async def progress(request: web.Request) -> web.Response:
    return web.json_response(CALLS)


count_progress()
small_ernie()
PromptServer.instance.routes.get("/outboard-test/progress")(progress)
