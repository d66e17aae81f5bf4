"""Outboard KSampler: KSampler's widgets and result, and a second output that says what the engine did."""

from __future__ import annotations

from typing import Any, Literal

import comfy.samplers
from comfy_api.latest import io

import nodes as comfy_nodes

from ..engine.cache.presets import PRESETS
from ..protocol.messages.cache import CacheSettings
from .caching import with_cache
from .choice import OPTION, RunSettings
from .engine_node import SettingsType
from .patcher import OutboardPatcher
from .report import collecting

STOCK = '"stock: this MODEL does not come from an Outboard loader"'


class OutboardKSampler(io.ComfyNode):
    """Samples like KSampler, and reports how."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="OutboardKSampler",
            display_name="Outboard KSampler",
            category="outboard",
            description="KSampler, with a report of what the Outboard engine did.",
            inputs=[
                io.Model.Input("model", tooltip="An Outboard MODEL, or any other."),
                io.Int.Input("seed", default=0, min=0, max=0xFFFFFFFFFFFFFFFF, control_after_generate=True),
                io.Int.Input("steps", default=20, min=1, max=10000),
                io.Float.Input("cfg", default=8.0, min=0.0, max=100.0, step=0.1, round=0.01),
                io.Combo.Input("sampler_name", options=comfy.samplers.KSampler.SAMPLERS),
                io.Combo.Input("scheduler", options=comfy.samplers.KSampler.SCHEDULERS),
                io.Conditioning.Input("positive"),
                io.Conditioning.Input("negative"),
                io.Latent.Input("latent_image"),
                io.Float.Input("denoise", default=1.0, min=0.0, max=1.0, step=0.01),
                SettingsType.Input(
                    "settings", optional=True, tooltip="How the steps run; see Outboard Settings."
                ),
                *cache_inputs(),
            ],
            outputs=[io.Latent.Output(), io.String.Output(display_name="report")],
        )

    @classmethod
    def execute(
        cls,
        model: Any,
        seed: int,
        steps: int,
        cfg: float,
        sampler_name: str,
        scheduler: str,
        positive: Any,
        negative: Any,
        latent_image: dict[str, Any],
        denoise: float,
        settings: RunSettings | None = None,
        enable_cache: bool = False,
        cache_mode: Literal["quality", "balanced", "fast"] = "balanced",
    ) -> io.NodeOutput:
        if settings is not None and isinstance(model, OutboardPatcher):
            model = model.clone()
            model.model_options[OPTION] = settings
        if enable_cache:
            model = with_cache(model, CacheSettings(preset=cache_mode))
        with collecting() as entries:
            (latent,) = comfy_nodes.common_ksampler(
                model,
                seed,
                steps,
                cfg,
                sampler_name,
                scheduler,
                positive,
                negative,
                latent_image,
                denoise=denoise,
            )
        return io.NodeOutput(latent, "\n".join(entry.text for entry in entries) or STOCK)


def cache_inputs() -> list[Any]:
    """The step cache's two widgets, last: a saved workflow stores widgets by their order."""
    return [
        io.Boolean.Input(
            "enable_cache",
            default=False,
            optional=True,
            tooltip="Reuse steps that hardly differ, which is faster and changes the picture a little. "
            "Off: as the MODEL or the engine says.",
        ),
        io.Combo.Input(
            "cache_mode",
            options=list(PRESETS),
            default="balanced",
            optional=True,
            tooltip="With enable_cache. quality: closest to the picture without cache; fast: fewest steps.",
        ),
    ]
