"""Which of ComfyUI's named samplers a KSAMPLER object is, and what its mask function means."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Mapping
from typing import Any

import comfy.k_diffusion.sampling
import comfy.samplers

from ..protocol.messages.common import Scalar

BUILT = ("dpm_fast", "dpm_adaptive")
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
    return next((name for name in known if name != "ddim" and _is(name, sampler.sampler_function)), "")


def label_of(sampler: Any) -> str:
    """What to call `sampler` in a message."""
    function = getattr(sampler, "sampler_function", None)
    name: str = getattr(function, "__name__", type(sampler).__name__)
    return name.removeprefix("sample_").removesuffix("_function")


def plain_options(sampler: Any) -> dict[str, Scalar] | None:
    """The sampler's extra options, None when one of them is not plain data."""
    options: Mapping[str, Any] = sampler.extra_options
    return dict(options) if all(map(is_plain, options.values())) else None


def is_plain(value: Any) -> bool:
    """Whether an option is plain data."""
    return value is None or isinstance(value, (bool, int, float, str))


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


def _is(name: str, function: Any) -> bool:
    """Whether ComfyUI's sampler `name` runs `function`, which some samplers have built anew each time."""
    if name not in comfy.samplers.SAMPLER_NAMES:
        return False
    stock = comfy.samplers.sampler_object(name).sampler_function
    built = name in BUILT and getattr(function, "__code__", None) is stock.__code__
    return function is stock or built
