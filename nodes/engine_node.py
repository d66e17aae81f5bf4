"""The nodes that choose: which engine computes, and how a sampler runs in it."""

from __future__ import annotations

from comfy_api.latest import io

from ..protocol.errors import InvalidRequestError
from .choice import AUTO, DTYPES, PATHS, EngineChoice, Path, RunSettings
from .compat import known

EngineType = io.Custom("OUTBOARD_ENGINE")
SettingsType = io.Custom("OUTBOARD_SETTINGS")

ADVANCED = known(io.Int.Input.__init__, advanced=True)
DEGREES = {
    "cfg": "Devices that compute some rows of each call, such as positive and negative. "
    "All degrees at 1: the best for each run.",
    "ulysses": "Devices that have some tokens each, and some heads within attention.",
    "ring": "Devices that have some tokens each; keys and values go round. For heads that do not divide.",
    "tp": "Devices that have a part of the weights each, for models that are too large for one.",
}


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
                io.Int.Input(
                    "ranks",
                    default=0,
                    min=0,
                    max=64,
                    optional=True,
                    tooltip="Devices that share each picture, with a process each. "
                    "0: those of an engine that runs already, else one, or as many as the degrees make.",
                ),
                *(
                    io.Int.Input(axis, default=1, min=1, max=64, optional=True, tooltip=text, **ADVANCED)
                    for axis, text in DEGREES.items()
                ),
            ],
            outputs=[EngineType.Output(display_name="engine")],
        )

    @classmethod
    def execute(cls, address: str, device: str, dtype: str, ranks: int = 0, **degrees: int) -> io.NodeOutput:
        given = tuple((axis, size) for axis, size in degrees.items() if size > 1)
        choice = EngineChoice(address.strip() or AUTO, device.strip() or AUTO, dtype, ranks, given)
        if choice.address != AUTO and (ranks or given):
            raise InvalidRequestError(
                f"The engine at {choice.address} has been started with its own ranks.",
                hint="Leave ranks at 0 and the degrees at 1, or the address at auto.",
            )
        return io.NodeOutput(choice)


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
