"""Nodes that only the tests use: conditioning without an encoder, latents, masks, progress counted."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

import comfy.model_patcher
import comfy.utils
import torch
from aiohttp import web
from comfy_execution.utils import get_executing_context
from server import PromptServer

from . import detection

CALLS: dict[str, dict[str, int]] = {}


NUMBER = ("INT", {"default": 0, "min": 0, "max": 2**31})


def randn(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


class TestConditioning:
    """Random text: context [1, tokens, width] and pooled [1, pooled], the same for the same seed.

    `words` > 0 adds an attention mask [1, tokens] in which the first so many count.
    """

    CATEGORY = "outboard/tests"
    FUNCTION = "make"
    RETURN_TYPES = ("CONDITIONING",)

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        return {
            "required": dict.fromkeys(("seed", "tokens", "width", "pooled"), NUMBER),
            "optional": {"words": NUMBER},
        }

    def make(self, seed: int, tokens: int, width: int, pooled: int, words: int = 0) -> tuple[Any, ...]:
        generator = torch.Generator().manual_seed(seed)
        context = torch.randn(1, tokens, width, generator=generator)
        extra = {"pooled_output": torch.randn(1, pooled, generator=generator)} if pooled else {}
        if words:
            extra["attention_mask"] = (torch.arange(tokens) < words).long()[None]
        return ([[context, extra]],)


class TestLatent:
    """A random latent [batch, channels, (frames,) height, width]; zeros for the seed 0."""

    CATEGORY = "outboard/tests"
    FUNCTION = "make"
    RETURN_TYPES = ("LATENT",)

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        names = ("seed", "batch", "channels", "height", "width")
        return {"required": dict.fromkeys(names, NUMBER), "optional": {"frames": NUMBER}}

    def make(
        self, seed: int, batch: int, channels: int, height: int, width: int, frames: int = 0
    ) -> tuple[Any, ...]:
        shape = (batch, channels, *([frames] if frames else []), height, width)
        return ({"samples": randn(seed, *shape) if seed else torch.zeros(shape)},)


class TestPicture:
    """What an image-to-video node adds to a conditioning: a latent to concatenate, its mask, CLIP tokens.

    The first frame of the mask is kept; `clip` is the number of CLIP tokens of width 1280, 0 for none.
    """

    CATEGORY = "outboard/tests"
    FUNCTION = "make"
    RETURN_TYPES = ("CONDITIONING",)

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        names = ("channels", "frames", "height", "width", "clip")
        return {"required": {"conditioning": ("CONDITIONING",), **dict.fromkeys(names, NUMBER)}}

    def make(
        self, conditioning: Any, channels: int, frames: int, height: int, width: int, clip: int
    ) -> tuple[Any, ...]:
        mask = torch.ones(1, 1, frames, height, width)
        mask[:, :, 0] = 0
        latent = randn(21, 1, channels, frames, height, width)
        values: dict[str, Any] = {"concat_latent_image": latent, "concat_mask": mask}
        if clip:
            values["clip_vision_output"] = SimpleNamespace(penultimate_hidden_states=randn(22, 1, clip, 1280))
        return ([[context, {**extra, **values}] for context, extra in conditioning],)


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


class TestVae:
    """An encoder alone: each latent pixel is the same mixture of the mean colours of 8x8 pixels."""

    CATEGORY = "outboard/tests"
    FUNCTION = "make"
    RETURN_TYPES = ("VAE",)

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        return {"required": {"channels": NUMBER}}

    def make(self, channels: int) -> tuple[Any, ...]:
        return (SimpleNamespace(encode=partial(_mixed, randn(31, 3, channels))),)


def _mixed(mixture: torch.Tensor, pixels: torch.Tensor) -> torch.Tensor:
    small = torch.nn.functional.avg_pool2d(pixels.movedim(-1, 1), 8)
    return torch.einsum("bchw,cd->bdhw", small, mixture)


class TestConcatMask:
    """Adds `mask`, the same for all frames, as concat_mask [1, 1, frames, height, width]."""

    CATEGORY = "outboard/tests"
    FUNCTION = "make"
    RETURN_TYPES = ("CONDITIONING",)

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        return {"required": {"conditioning": ("CONDITIONING",), "mask": ("MASK",), "frames": NUMBER}}

    def make(self, conditioning: Any, mask: torch.Tensor, frames: int) -> tuple[Any, ...]:
        video = mask[:1].expand(1, 1, frames, -1, -1)
        return ([[context, {**extra, "concat_mask": video}] for context, extra in conditioning],)


class TestPatch:
    """Sets a patch that returns what it is given, or an option, for the inside of the diffusion model."""

    CATEGORY = "outboard/tests"
    FUNCTION = "make"
    RETURN_TYPES = ("MODEL",)

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        return {"required": {"model": ("MODEL",), "name": ("STRING", {"default": ""})}}

    def make(self, model: Any, name: str) -> tuple[Any, ...]:
        model = model.clone()
        if name.endswith("_patch"):
            model.set_model_patch(lambda given: given, name)
        else:
            model.model_options["transformer_options"][name] = True
        return (model,)


class TestGuidance:
    """Changes guidance by code of its own, under the name and in the place of what a stock node sets."""

    CATEGORY = "outboard/tests"
    FUNCTION = "make"
    RETURN_TYPES = ("MODEL",)

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        return {"required": {"model": ("MODEL",), "place": ("STRING", {"default": ""})}}

    def make(self, model: Any, place: str) -> tuple[Any, ...]:
        model = model.clone()
        if place == "predict_noise":
            model.add_wrapper(place, lambda executor, *args, **keywords: executor(*args, **keywords) * 0.9)
        elif place == "sampler_pre_cfg_function":
            model.set_model_sampler_pre_cfg_function(lambda args: [x0 * 0.9 for x0 in args["conds_out"]])
        elif place == "sampler_cfg_function":
            model.set_model_sampler_cfg_function(_disguised(True, 2.0))
        else:
            model.set_model_sampler_post_cfg_function(lambda args: args["denoised"] * 0.9)
        return (model,)


def _disguised(is_flow: bool, multiplier: float) -> Any:
    """By its name and its closure it is RescaleCFG's, by its source it is not."""

    def rescale_cfg(args: dict[str, Any]) -> torch.Tensor:
        noise: torch.Tensor = args["uncond"] + multiplier * is_flow * (args["cond"] - args["uncond"])
        return noise

    rescale_cfg.__module__ = "comfy_extras.nodes_model_advanced"
    rescale_cfg.__qualname__ = "RescaleCFG.patch.<locals>.rescale_cfg"
    return rescale_cfg


class TestPerStep:
    """Asks for the path by step, as Outboard Settings do for an Outboard KSampler."""

    CATEGORY = "outboard/tests"
    FUNCTION = "make"
    RETURN_TYPES = ("MODEL",)

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        return {"required": {"model": ("MODEL",)}}

    def make(self, model: Any) -> tuple[Any, ...]:
        model = model.clone()
        model.model_options["outboard"] = SimpleNamespace(path="per_step")
        return (model,)


class TestModelPatch:
    """A patch model of a ControlNet for Qwen-Image or Z-Image, which does nothing."""

    CATEGORY = "outboard/tests"
    FUNCTION = "make"
    RETURN_TYPES = ("MODEL_PATCH",)

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        return {"required": {}}

    def make(self) -> tuple[Any, ...]:
        cpu = torch.device("cpu")
        return (comfy.model_patcher.ModelPatcher(IdlePatch(), load_device=cpu, offload_device=cpu),)


class IdlePatch(torch.nn.Module):
    additional_in_dim = 0

    def process_input_latent_image(self, latent: torch.Tensor) -> torch.Tensor:
        return latent


NODE_CLASS_MAPPINGS = {
    "OutboardTestConditioning": TestConditioning,
    "OutboardTestLatent": TestLatent,
    "OutboardTestPicture": TestPicture,
    "OutboardTestConcatMask": TestConcatMask,
    "OutboardTestPatch": TestPatch,
    "OutboardTestModelPatch": TestModelPatch,
    "OutboardTestGuidance": TestGuidance,
    "OutboardTestVae": TestVae,
    "OutboardTestPerStep": TestPerStep,
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


async def progress(request: web.Request) -> web.Response:
    return web.json_response(CALLS)


count_progress()
detection.install()
PromptServer.instance.routes.get("/outboard-test/progress")(progress)
