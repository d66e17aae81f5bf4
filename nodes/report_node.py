"""Outboard Report: the whole report of a sampler, as text on the node."""

from __future__ import annotations

from typing import Any

from comfy_api.latest import io, ui

from ..protocol.errors import InvalidRequestError
from .lineage import Prompt, signature, upstream
from .report import REPORTS, Entry

NONE = "No Outboard run made this latent in this session of ComfyUI."


class OutboardReport(io.ComfyNode):
    """Shows a report, or finds that of the sampler which made a latent."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="OutboardReport",
            display_name="Outboard Report",
            category="outboard",
            description="Shows what the engine did: connect a report, or the latent of any sampler.",
            is_output_node=True,
            not_idempotent=True,
            inputs=[
                io.String.Input("report", optional=True, force_input=True),
                io.Latent.Input(
                    "latent", optional=True, tooltip="From any sampler that uses an Outboard MODEL."
                ),
            ],
            outputs=[io.String.Output(display_name="report")],
            hidden=[io.Hidden.unique_id, io.Hidden.prompt],
        )

    @classmethod
    def execute(cls, report: str | None = None, latent: Any = None) -> io.NodeOutput:
        if report is None and latent is None:
            raise InvalidRequestError(
                "Outboard Report has no input.", hint="Connect a report, or a sampler's latent."
            )
        if report is None:
            entry = nearest(cls.hidden.prompt or {}, str(cls.hidden.unique_id))
            report = NONE if entry is None else entry.text
        return io.NodeOutput(report, ui=ui.PreviewText(report))


def nearest(prompt: Prompt, node: str) -> Entry | None:
    """The report of the closest node upstream of `node` that has one for the very work it has in `prompt`."""
    for source in upstream(prompt, node):
        entry = REPORTS.of(source)
        if entry is not None and entry.lineage == signature(prompt, source):
            return entry
    return None
