"""The nodes that choose: which engine computes, and how a sampler runs in it."""

from __future__ import annotations

from comfy_api.latest import io

from .choice import AUTO, DTYPES, PATHS, EngineChoice, Path, RunSettings

EngineType = io.Custom("OUTBOARD_ENGINE")
SettingsType = io.Custom("OUTBOARD_SETTINGS")


class OutboardEngine(io.ComfyNode):
    """Chooses the engine that a loader uses."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="OutboardEngine",
            display_name="Outboard Engine",
            category="outboard",
            description="Chooses the engine of a loader, the device it computes on and its dtype.",
            inputs=[
                io.String.Input(
                    "address",
                    default=AUTO,
                    tooltip="auto starts an engine on this machine; tcp://host:port uses one elsewhere.",
                ),
                io.String.Input(
                    "device",
                    default=AUTO,
                    tooltip="Where a started engine computes: auto, cpu, cuda or cuda:<index>.",
                ),
                io.Combo.Input(
                    "dtype", options=list(DTYPES), default=AUTO, tooltip="auto follows ComfyUI's rules."
                ),
            ],
            outputs=[EngineType.Output(display_name="engine")],
        )

    @classmethod
    def execute(cls, address: str, device: str, dtype: str) -> io.NodeOutput:
        return io.NodeOutput(EngineChoice(address.strip() or AUTO, device.strip() or AUTO, dtype))


class OutboardSettings(io.ComfyNode):
    """Chooses how an Outboard KSampler runs."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="OutboardSettings",
            display_name="Outboard Settings",
            category="outboard",
            description="Chooses how an Outboard KSampler runs its steps.",
            inputs=[
                io.Combo.Input(
                    "path",
                    options=list(PATHS),
                    default=AUTO,
                    tooltip="whole_loop: all steps in the engine, or an error saying why not. "
                    "per_step: the loop in ComfyUI. auto: the whole loop where it gives the same picture.",
                ),
            ],
            outputs=[SettingsType.Output(display_name="settings")],
        )

    @classmethod
    def execute(cls, path: Path) -> io.NodeOutput:
        return io.NodeOutput(RunSettings(path))
