"""Outboard UNET Loader: UNETLoader's widgets, a MODEL whose weights are in an engine."""

from __future__ import annotations

import logging
from typing import Any

import comfy.model_management
import torch
from comfy.cli_args import args
from comfy.patcher_extension import WrappersMP
from comfy_api.latest import io

from ..engine.models.header import Header
from ..engine.models.registry import Detected, detect
from ..protocol.errors import UnsupportedRequestError
from ..protocol.messages.common import ModelSettings
from ..protocol.torch import device_of
from . import boundary, model_file, skeleton, weight_dtype
from .choice import AUTO, EngineChoice
from .compat import known
from .eligibility import WRAPPER
from .engine_node import EngineType
from .footprint import ITEM_SIZES, bytes_at, computes_on
from .janitor import JANITOR
from .patcher import OutboardPatcher, refuse_saving
from .remote import RemoteModel
from .session import SESSIONS, Session
from .whole_loop import sampler_sample

UNSUPPORTED_FLAGS = ("fp64_unet", "fp8_e8m0fnu_unet")


class OutboardUNETLoader(io.ComfyNode):
    """Reads a model's header, and leaves its weights to an engine."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="OutboardUNETLoader",
            display_name="Outboard UNET Loader",
            category="outboard",
            description="Loads a diffusion model in the Outboard engine, in place of Load Diffusion Model.",
            inputs=[
                io.Combo.Input("unet_name", options=model_file.names()),
                io.Combo.Input(
                    "weight_dtype",
                    options=weight_dtype.WEIGHT_DTYPES,
                    **known(io.Combo.Input.__init__, advanced=True),
                ),
                EngineType.Input(
                    "engine", optional=True, tooltip="Which engine; without it, one on this machine."
                ),
            ],
            outputs=[io.Model.Output()],
        )

    @classmethod
    def execute(cls, unet_name: str, weight_dtype: str, engine: EngineChoice | None = None) -> io.NodeOutput:
        return io.NodeOutput(load(unet_name, engine or EngineChoice(), weight_dtype))


def load(unet_name: str, choice: EngineChoice, widget: str = weight_dtype.DEFAULT) -> OutboardPatcher:
    """A MODEL of the file that ComfyUI lists as `unet_name`, computed by the engine of `choice`.

    `widget`: UNETLoader's weight_dtype. Connects to the engine, starting it if need be. Raises ModelError for
    a file neither side can use, EngineError for an engine that does not come up.
    """
    header = model_file.find(unet_name)
    detected = detect(header)
    chosen = weight_dtype.wanted(widget, detected)
    plain = chosen == weight_dtype.DEFAULT and not weight_dtype.is_quantised(detected)
    dtype = wanted_dtype(choice, plain=plain)
    load_device = comfy.model_management.get_torch_device()
    offload_device = comfy.model_management.unet_offload_device()
    inside = weight_dtype.FP8.get(chosen) or getattr(torch, dtype, None)
    model = skeleton.build(header, detected, inside, load_device, offload_device)
    session = SESSIONS.of(choice)
    if dtype == AUTO and device_of(session.welcome.device).type == load_device.type:
        dtype = computed_in(model)
    held = weight_dtype.held(model, chosen)
    settings = ModelSettings.model_validate({"dtype": dtype, "weight_dtype": held})
    model.outboard = _remote(unet_name, header, detected, settings, session)
    model.outboard_local = computes_on(session, load_device)
    if not model.outboard_local:
        # Nothing is computed on this side: conditionings may always share a call, and no room is needed.
        model.memory_usage_factor = 0
    model.state_dict_for_saving = refuse_saving
    boundary.install(model.diffusion_model, model.outboard)
    JANITOR.watch(model, model.outboard)
    patcher = OutboardPatcher(model, load_device, offload_device)
    patcher.add_wrapper_with_key(WrappersMP.SAMPLER_SAMPLE, WRAPPER, sampler_sample)
    logging.info(
        "Outboard: %s is %s at the engine %s", unet_name, type(model).__name__, session.welcome.engine
    )
    return patcher


def computed_in(model: Any) -> str:
    """The dtype in which ComfyUI would compute `model` itself; "auto" for one the engine does not have."""
    name = str(model.manual_cast_dtype or model.get_dtype()).removeprefix("torch.")
    return name if name in ITEM_SIZES else AUTO


def wanted_dtype(choice: EngineChoice, *, plain: bool) -> str:
    """The node's dtype, else what ComfyUI's own command line forces, else "auto".

    plain: whether weights are held in the dtype they are computed in, which alone its --*-unet options set.
    """
    for flag in UNSUPPORTED_FLAGS:
        if getattr(args, flag, False):
            raise UnsupportedRequestError(
                f"ComfyUI runs with --{flag.replace('_unet', '')}-unet, which the engine cannot honour.",
                hint="Start ComfyUI without it, or use the stock loader (UNETLoader).",
            )
    if choice.dtype != AUTO:
        return choice.dtype
    forced = {
        "float32": args.force_fp32 or (plain and args.fp32_unet),
        "bfloat16": plain and args.bf16_unet,
        "float16": plain and args.fp16_unet,
    }
    return next((dtype for dtype, on in forced.items() if on), AUTO)


def _remote(
    name: str, header: Header, detected: Detected, settings: ModelSettings, session: Session
) -> RemoteModel:
    device = device_of(session.welcome.device)
    footprint = bytes_at(detected, settings.dtype, settings.weight_dtype, device)
    return RemoteModel(session, model_file.reference(name, header), settings, footprint)
