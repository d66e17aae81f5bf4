"""Outboard Cache Settings: the step cache of a MODEL, by one word or value by value."""

from __future__ import annotations

from typing import Any

from comfy_api.latest import io

from ..engine.cache.choice import CUSTOM, OFF
from ..engine.cache.presets import PRESETS
from ..protocol.messages.cache import CacheSettings
from .cache_inputs import single_inputs, values_of
from .caching import with_cache
from .compat import known

CHOICES = [OFF, *PRESETS, CUSTOM]


class OutboardCacheSettings(io.ComfyNode):
    """Chooses which steps of a MODEL's runs are reused, with any sampler node."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="OutboardCacheSettings",
            display_name="Outboard Cache Settings",
            category="outboard",
            description="Reuses steps that hardly differ from others: faster, a slightly other picture.",
            inputs=[
                io.Model.Input("model", tooltip="From an Outboard loader."),
                io.Combo.Input(
                    "preset",
                    options=CHOICES,
                    default="balanced",
                    tooltip="quality: closest to the picture without cache. fast: the least work; details may"
                    " change. balanced: between. off: no cache, whatever the engine's default. "
                    "custom: cache-dit's own defaults, to build on.",
                ),
                *single_inputs(),
                io.Boolean.Input(
                    "force",
                    default=False,
                    optional=True,
                    tooltip="Cache even where the sampler adds fresh noise at every step (ancestral, SDE), "
                    "which is likely to spoil the picture.",
                    **known(io.Boolean.Input.__init__, advanced=True),
                ),
            ],
            outputs=[io.Model.Output()],
        )

    @classmethod
    def execute(cls, model: Any, preset: str, force: bool = False, **inputs: Any) -> io.NodeOutput:
        fields = {"preset": preset, "values": values_of(inputs), "force": force}
        return io.NodeOutput(with_cache(model, CacheSettings.model_validate(fields)))
