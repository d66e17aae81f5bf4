"""Any model file as a subject: noise of its latent's form, and text from a file or at random."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from ...protocol.errors import InvalidRequestError, UnsupportedRequestError
from ..models.model import Model
from ..sampling.noise import initial_noise
from .cache import Subject

#: Families whose channels are counted as packed, four to a token; those with a dimension of time; those that
#: are told a thousandfold sigma.
PACKED = frozenset({"flux1", "qwen_image", "chroma"})
MOVING = frozenset({"qwen_image", "wan", "hunyuan_video", "ltx_video"})
THOUSANDS = frozenset({"ernie_image", "wan", "sd3", "hunyuan_video"})
#: What families call the width of their text.
WIDTHS = (
    "joint_attention_dim",
    "cap_feat_dim",
    "text_dim",
    "text_in_dim",
    "text_embed_dim",
    "caption_channels",
)
POOLED, WORDS, GUIDANCE = "pooled_projection_dim", 77, 3.5


def stranger(model: Model, side: int, shift: float, conditioning: Mapping[str, Tensor] | None) -> Subject:
    """A subject of `side` x `side` latents (one frame), on the model's device; no conditioning: random text.

    Raises UnsupportedRequestError for a model that reads more than noise and text, InvalidRequestError for
    sizes or a conditioning that it does not take.
    """
    given = random_text(model) if conditioning is None else conditioning
    rows = len(given["context"]) if "context" in given else 1
    channels = _config(model)["in_channels"] // (4 if model.family in PACKED else 1)
    frames = (1,) if model.family in MOVING else ()
    noise = initial_noise((rows, channels, *frames, side, side), 0).to(model.device)
    clock = 1000.0 if model.family in THOUSANDS else 1.0
    subject = Subject(model.header.path.name, model, noise, given, clock=clock, shift=shift)
    v = model.predict(noise, noise.new_full((rows,), clock), given)
    if v.shape != noise.shape:
        raise UnsupportedRequestError(
            f"{model.header.path}: it reads {channels} channels and answers {v.shape[1]}; such models need "
            "a picture to start from, which tuning has not.",
            hint="Tune the text-to-image or text-to-video model of the family; its settings are a start.",
        )
    return subject


def random_text(model: Model) -> dict[str, Tensor]:
    """Conditioning of the right shapes that means nothing, the same at each call."""
    config = _config(model)
    generator = torch.Generator().manual_seed(0)
    width = next(config[name] for name in WIDTHS if name in config)
    given = {"context": torch.randn(1, WORDS, width, generator=generator)}
    if config.get(POOLED) and "y" in model.adapter.conditioning:
        given["y"] = torch.randn(1, config[POOLED], generator=generator)
    if config.get("guidance_embeds"):
        given["guidance"] = torch.full((1,), GUIDANCE)
    return given


def conditioning_of(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file, by ComfyUI's names; InvalidRequestError names one that has none."""
    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise InvalidRequestError(
            f"{path}: no readable conditioning: {error}.",
            hint="Give a safetensors file with `context` (rows, words, width) and what else the model takes.",
        ) from error


def _config(model: Model) -> Mapping[str, Any]:
    assert model.detected is not None
    return model.detected.config
