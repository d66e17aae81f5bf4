"""Outboard KSampler: KSampler's widgets and result, and a second output that says what the engine did."""

from __future__ import annotations

from typing import Any

import comfy.samplers
import nodes as comfy_nodes
from comfy_api.latest import io

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
    ) -> io.NodeOutput:
        if settings is not None and isinstance(model, OutboardPatcher):
            model = model.clone()
            model.model_options[OPTION] = settings
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
