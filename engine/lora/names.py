"""What LoRA files call the weights of a model: the names that ComfyUI 0.33 knows, no more and no fewer."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from ..models.flux1 import (
    DOUBLE,
    DOUBLE_FUSED,
    DOUBLE_LAYERS,
    DOUBLE_NORMS,
    GUIDANCE,
    SINGLE,
    SINGLE_LAYERS,
    SINGLE_NORMS,
    STEM,
)
from ..models.keymap import block_count
from .layout import FileWeight, Layout

FULL = "diffusion_model."
WEIGHT = ".weight"
ALSO_FLUX = {
    "img_mlp.0": "ff.linear_in",
    "img_mlp.2": "ff.linear_out",
    "txt_mlp.0": "ff_context.linear_in",
    "txt_mlp.2": "ff_context.linear_out",
}
ALSO_SINGLE = {"linear1": "attn.to_qkv_mlp_proj", "linear2": "attn.to_out"}
MLP_RATIO = 4
#: How ComfyUI's module spells what the published file spells otherwise.
FLUX_NORMS = ((re.compile(r"\.(query_norm|key_norm|norms\.\d+)\.scale$"), r".\1.weight"),)
RESPELLED = {
    "flux1": FLUX_NORMS,
    "flux2": FLUX_NORMS,
    "chroma": FLUX_NORMS,
    "hunyuan_video": tuple(
        (re.compile(pattern), name)
        for pattern, name in (
            (r"(^time_in|^guidance_in|t_embedder)\.mlp\.0\.", r"\1.in_layer."),
            (r"(^time_in|^guidance_in|t_embedder)\.mlp\.2\.", r"\1.out_layer."),
            (r"c_embedder\.linear_1\.", "c_embedder.in_layer."),
            (r"c_embedder\.linear_2\.", "c_embedder.out_layer."),
            (r"(_mod|\.modulation)\.linear\.", r"\1.lin."),
            (r"_attn_(qkv|proj)\.", r"_attn.\1."),
            (r"mlp\.fc1\.", "mlp.0."),
            (r"mlp\.fc2\.", "mlp.2."),
            (r"_attn_q_norm\.weight$", "_attn.norm.query_norm.weight"),
            (r"_attn_k_norm\.weight$", "_attn.norm.key_norm.weight"),
            (r"^(single_blocks\.\d+)\.q_norm\.weight$", r"\1.norm.query_norm.weight"),
            (r"^(single_blocks\.\d+)\.k_norm\.weight$", r"\1.norm.key_norm.weight"),
        )
    ),
}
#: Names that diffusion-pipe gives HunyuanVideo's layers.
PIPE = (
    ("_mod.lin", "_mod.linear"),
    ("_attn.qkv", "_attn_qkv"),
    ("_attn.proj", "_attn_proj"),
    ("mlp.0", "mlp.fc1"),
    ("mlp.2", "mlp.fc2"),
    (".modulation.lin", ".modulation.linear"),
)


TEXT_ENCODERS = ("lora_te", "text_encoder")


def of_text_encoder(key: str) -> bool:
    """Whether a LoRA has the key for a text encoder, of which no diffusion model has a weight."""
    return key.startswith(TEXT_ENCODERS)


@dataclass(frozen=True)
class Spot:
    """A weight, or some rows of it; `swapped`: what is added to it has its two halves in opposite order."""

    key: str
    offset: tuple[int, int, int] | None = None
    swapped: bool = False


Names = Iterator[tuple[str, Spot]]


def comfy_name(family: str, key: str) -> str:
    """The name in ComfyUI's module of the weight that the file's layout calls `key`."""
    for pattern, name in RESPELLED.get(family, ()):
        key = pattern.sub(name, key)
    return key


def lora_names(layout: Layout) -> dict[str, Spot]:
    """Every name that a LoRA file may give to a weight of this model, in the order ComfyUI looks for them."""
    weights = {comfy_name(layout.family.name, key): weight for key, weight in layout.weights.items()}
    names = dict(_general(weights))
    names.update(OWN.get(layout.family.name, _none)(weights))
    return {name: spot for name, spot in names.items() if spot.key in weights}


Weights = Mapping[str, FileWeight]


def _general(weights: Weights) -> Names:
    for key in weights:
        if key.endswith(WEIGHT):
            stem = key.removesuffix(WEIGHT)
            yield f"lora_unet_{_flat(stem)}", Spot(key)
            yield FULL + stem, Spot(key)
        else:
            yield FULL + key, Spot(key)


def _none(_weights: Weights) -> Names:
    return iter(())


def _layers(weights: Weights) -> Iterator[str]:
    return (key.removesuffix(WEIGHT) for key in weights if key.endswith(WEIGHT))


def _qwen_image(weights: Weights) -> Names:
    for stem in _layers(weights):
        for name in (stem, f"transformer.{stem}", f"lycoris_{_flat(stem)}"):
            yield name, Spot(stem + WEIGHT)


def _ltx_video(weights: Weights) -> Names:
    return ((stem, Spot(stem + WEIGHT)) for stem in _layers(weights))


def _ernie_image(weights: Weights) -> Names:
    return ((f"transformer.{stem}", Spot(stem + WEIGHT)) for stem in _layers(weights))


def _hunyuan_video(weights: Weights) -> Names:
    for stem in _layers(weights):
        piped = f"{stem}."
        for ours, theirs in PIPE:
            piped = piped.replace(f"{ours}.", f"{theirs}.")
        yield f"transformer.{piped[:-1]}", Spot(stem + WEIGHT)
        yield FULL + piped[:-1], Spot(stem + WEIGHT)


def _z_image(weights: Weights) -> Names:
    for name, spot in _diffusers(weights):
        yield FULL + name, spot
        yield f"transformer.{name}", spot
        yield f"lycoris_{_flat(name)}", spot
        yield name, spot


def _sd3(weights: Weights) -> Names:
    for name, spot in _diffusers(weights):
        yield f"transformer.{name}", spot
        yield f"base_model.model.{name}", spot
        yield f"lora_transformer_{_flat(name)}", spot
        yield f"lycoris_{_flat(name)}", spot


def _flux(weights: Weights) -> Names:
    for name, spot in _flux_layers(weights):
        yield f"transformer.{name}", spot
        yield f"lycoris_{_flat(name)}", spot
        yield f"lora_transformer_{_flat(name)}", spot
        yield name, spot
    hidden = weights["img_in.weight"].shape[0]
    for stem in _layers(weights):
        if stem.endswith(".linear1"):
            yield f"{FULL}{stem}_qkv", Spot(stem + WEIGHT, (0, 0, 3 * hidden))


OWN: Mapping[str, Callable[[Weights], Names]] = {
    "flux1": _flux,
    "flux2": _flux,
    "chroma": _flux,
    "qwen_image": _qwen_image,
    "z_image": _z_image,
    "sd3": _sd3,
    "hunyuan_video": _hunyuan_video,
    "ltx_video": _ltx_video,
    "ernie_image": _ernie_image,
}


def _flux_layers(weights: Weights) -> Names:
    """The names of FLUX.1's layers in diffusers, for all of its kind, and some that only FLUX.2 has."""
    hidden = weights["img_in.weight"].shape[0]
    for number in range(block_count(weights, "double_blocks.")):
        ours, theirs = f"double_blocks.{number}.", f"{DOUBLE}{number}."
        for file, parts in DOUBLE_FUSED.items():
            yield from _rows(ours + file, [(theirs + part, hidden) for part in parts])
        for table in (DOUBLE_LAYERS, ALSO_FLUX, _without_scale(DOUBLE_NORMS)):
            yield from ((theirs + name, Spot(ours + file + WEIGHT)) for file, name in table.items())
    for number in range(block_count(weights, "single_blocks.")):
        ours, theirs = f"single_blocks.{number}.", f"{SINGLE}{number}."
        fused = [(f"{theirs}attn.to_{part}", hidden) for part in "qkv"]
        yield from _rows(f"{ours}linear1", [*fused, (f"{theirs}proj_mlp", MLP_RATIO * hidden)])
        for table in (SINGLE_LAYERS, ALSO_SINGLE, _without_scale(SINGLE_NORMS)):
            yield from ((theirs + name, Spot(ours + file + WEIGHT)) for file, name in table.items())
    yield from ((name, Spot(file + WEIGHT)) for file, name in (STEM | GUIDANCE).items())
    yield "norm_out.linear", Spot("final_layer.adaLN_modulation.1.weight", swapped=True)


def _rows(layer: str, parts: list[tuple[str, int]]) -> Names:
    start = 0
    for name, rows in parts:
        yield name, Spot(layer + WEIGHT, (0, start, rows))
        start += rows


def _without_scale(norms: Mapping[str, str]) -> dict[str, str]:
    return {file.removesuffix(".scale"): name.removesuffix(WEIGHT) for file, name in norms.items()}


def _diffusers(weights: Weights) -> Names:
    """The names that diffusers gives the layers, as the model's own plan has them."""
    for key, weight in weights.items():
        for read in weight.reads:
            if not read.target.endswith(WEIGHT):
                continue
            targets = {part.target for part in weight.reads}
            if len(targets) == 1:
                yield read.target.removesuffix(WEIGHT), Spot(key, swapped=len(weight.reads) > 1)
            else:
                yield read.target.removesuffix(WEIGHT), Spot(key, (0, read.first, read.rows))


def _flat(name: str) -> str:
    return name.replace(".", "_")
