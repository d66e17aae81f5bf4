"""Which of ComfyUI's named samplers a KSAMPLER object is, and what its mask function means."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Mapping
from typing import Any

import comfy.extra_samplers.uni_pc
import comfy.k_diffusion.sampling
import comfy.samplers

from ..protocol.messages.common import Scalar

UNI_PC = {"uni_pc": "sample_unipc", "uni_pc_bh2": "sample_unipc_bh2"}
DIFFERENTIAL = "nodes_differential_diffusion"


def name_of(sampler: Any, known: Collection[str]) -> str:
    """The name under which ComfyUI would build `sampler`, "" when it is none of `known`."""
    if type(sampler) is not comfy.samplers.KSAMPLER:
        return ""
    if sampler.inpaint_options == {"random": True}:
        is_euler = sampler.sampler_function is comfy.k_diffusion.sampling.sample_euler
        return "ddim" if is_euler and "ddim" in known else ""
    if sampler.inpaint_options:
        return ""
    names = (name for name in known if name != "ddim" and _function(name) is sampler.sampler_function)
    return next(names, "")


def label_of(sampler: Any) -> str:
    """What to call `sampler` in a message."""
    function = getattr(sampler, "sampler_function", None)
    name: str = getattr(function, "__name__", type(sampler).__name__)
    return name.removeprefix("sample_")


def plain_options(sampler: Any) -> dict[str, Scalar] | None:
    """The sampler's extra options, None when one of them is not plain data."""
    options: Mapping[str, Any] = sampler.extra_options
    if all(value is None or isinstance(value, (bool, int, float, str)) for value in options.values()):
        return dict(options)
    return None


def differential_strength(function: Any) -> float | None:
    """The strength with which the stock DifferentialDiffusion node set `function`, None if it did not."""
    qualname: str = getattr(function, "__qualname__", "")
    module: str = getattr(function, "__module__", "")
    if not module.endswith(DIFFERENTIAL) or not qualname.startswith("DifferentialDiffusion."):
        return None
    if inspect.ismethod(function):
        return 1.0 if "strength" not in inspect.signature(function).parameters else None
    strength = inspect.getclosurevars(function).nonlocals.get("strength")
    return float(strength) if isinstance(strength, (int, float)) else None


def _function(name: str) -> Any:
    if name in UNI_PC:
        return getattr(comfy.extra_samplers.uni_pc, UNI_PC[name], None)
    return getattr(comfy.k_diffusion.sampling, f"sample_{name}", None)
