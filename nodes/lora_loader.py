"""Outboard LoRA Loader: a LoRA by its file's name, which the engine reads itself where it can."""

from __future__ import annotations

import logging
import uuid
from typing import Any

import comfy.sd
import comfy.utils
import folder_paths
from comfy_api.latest import io, ui

from ..engine.models.header import Header
from ..protocol.adapters import AdapterSet
from ..protocol.errors import ModelError, UnsupportedRequestError
from ..protocol.messages.adapters import LoraFile
from . import model_file
from .lora_match import Match, match
from .outfit import ATTACHMENT, Layer, layers_of
from .patcher import OutboardPatcher

SHOWN = 20


class OutboardLoraLoader(io.ComfyNode):
    """Puts a LoRA on a MODEL, in order with any other LoRA nodes."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="OutboardLoraLoader",
            display_name="Outboard LoRA Loader",
            category="outboard",
            description="LoraLoaderModelOnly by the file's name: the engine reads the file, and the node "
            "says what in it fits the model.",
            inputs=[
                io.Model.Input("model", tooltip="An Outboard MODEL, or any other."),
                io.Combo.Input("lora_name", options=folder_paths.get_filename_list(model_file.LORAS)),
                io.Float.Input("strength_model", default=1.0, min=-100.0, max=100.0, step=0.01),
            ],
            outputs=[io.Model.Output()],
        )

    @classmethod
    def execute(cls, model: Any, lora_name: str, strength_model: float) -> io.NodeOutput:
        if strength_model == 0:
            return io.NodeOutput(model)
        header = model_file.find(lora_name, model_file.LORAS)
        found = match(model.model, header)
        text = described(lora_name, found)
        if not found.weights:
            raise UnsupportedRequestError(text, hint="It was made for another kind of model.")
        return io.NodeOutput(applied(model, lora_name, header, strength_model), ui=ui.PreviewText(text))


def described(name: str, found: Match) -> str:
    """What of the file fits the model, for the node's text."""
    if not found.weights:
        return f"{name} fits no weight of this MODEL: none of its {len(found.unmatched)} keys is known."
    lines = [f"{name}: {len(found.weights)} weights"]
    if found.unmatched:
        lines.append(f"{len(found.unmatched)} of its keys name nothing in this MODEL:")
        lines += found.unmatched[:SHOWN]
    if len(found.unmatched) > SHOWN:
        lines.append("...")
    return "\n".join(lines)


def applied(model: Any, name: str, header: Header, strength: float) -> Any:
    """A clone of `model` with the LoRA: as a file where its engine can read it, else as ComfyUI reads it."""
    if isinstance(model, OutboardPatcher):
        file = LoraFile(
            name=model_file.wire_name(name), size=header.size, digest=header.digest, strength=strength
        )
        if _readable(model, file):
            return with_file(model, file)
    tensors = comfy.utils.load_torch_file(str(header.path), safe_load=True)
    patched, _ = comfy.sd.load_lora_for_models(model, None, tensors, strength, 0)
    return patched


def with_file(model: OutboardPatcher, file: LoraFile) -> OutboardPatcher:
    """A clone of `model` that wears `file` after all it wears already."""
    clone: OutboardPatcher = model.clone()
    before = {key: len(entries) for key, entries in clone.patches.items()}
    clone.set_attachments(ATTACHMENT, (*layers_of(clone), Layer(file, before)))
    # What ComfyUI tells two states of a model's weights apart by.
    clone.patches_uuid = uuid.uuid4()
    return clone


def _readable(model: OutboardPatcher, file: LoraFile) -> bool:
    """Whether the engine has this very file under that name."""
    try:
        model.remote.session.adapt(AdapterSet([file]))
    except ModelError as error:
        logging.info("Outboard: the tensors of %s are sent: %s", file.name, error.message)
        return False
    return True
