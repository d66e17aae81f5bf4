"""Whether a sampler call can run as one whole loop in the engine, and if not, why.

Each check returns the reason against it, or nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import comfy.model_base
import comfy.model_sampling
import torch

from . import sampler_name, skipping
from .choice import CACHE_OPTION, OPTION, RunSettings
from .guidance import PLACES, Guided
from .stock_guidance import WRAPPER as PREDICT_NOISE

WRAPPER = "outboard"
PREVIEW_MODULE = "latent_preview"

#: What TorchCompileModel and MultiGPU_WorkUnits leave behind; see patcher.py.
DECIDED_BY_THE_ENGINE = ("torch_compile_kwargs", "multigpu_options")
OPTION_KEYS = frozenset(
    {
        "transformer_options",
        "to_load_options",
        "disable_cfg1_optimization",
        "denoise_mask_function",
        OPTION,
        *DECIDED_BY_THE_ENGINE,
        CACHE_OPTION,
    }
)
TRANSFORMER_KEYS = frozenset(
    {
        "sample_sigmas",
        "wrappers",
        "callbacks",
        "rope_options",
        "patches",
        "patches_replace",
        "optimized_attention_override",
    }
)
INNER_WRAPPERS = ("sampler_sample", "predict_noise", "calc_cond_batch", "apply_model", "diffusion_model")
INNER_CALLBACKS = ("on_prepare_state", "on_apply_hooks")


@dataclass(frozen=True, eq=False)
class Loop:
    """What ComfyUI hands to a sampler: tensors [B, C, ...], the latent already in model space."""

    guider: Any
    sampler: Any
    sigmas: torch.Tensor
    extra_args: Mapping[str, Any]
    callback: Callable[..., Any] | None
    noise: torch.Tensor
    latent: torch.Tensor
    mask: torch.Tensor | None
    samplers: Collection[str] = field(default_factory=frozenset)

    @property
    def options(self) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self.extra_args.get("model_options", {})
        return found

    @property
    def transformer_options(self) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self.options.get("transformer_options", {})
        return found

    @property
    def settings(self) -> RunSettings:
        return self.options.get(OPTION) or RunSettings()

    @cached_property
    def guided(self) -> Guided:
        return Guided(self.guider, self.options, self.noise)

    @property
    def model_sampling(self) -> Any:
        return self.guider.inner_model.model_sampling


def reason_against(loop: Loop) -> str:
    """Why `loop` must run step by step in ComfyUI; "" when the engine can run it whole."""
    for check in CHECKS:
        reason = check(loop)
        if reason:
            return reason
    return ""


def _guidance(loop: Loop) -> str:
    return loop.guided.reason_against()


def _sampler(loop: Loop) -> str:
    if not sampler_name.name_of(loop.sampler, loop.samplers):
        return f"sampler {sampler_name.label_of(loop.sampler)}"
    return "" if sampler_name.plain_options(loop.sampler) is not None else "a sampler option that is not data"


def _sampling(loop: Loop) -> str:
    sampling, flow = loop.model_sampling, comfy.model_sampling
    kinds = (flow.ModelSamplingFlux, flow.ModelSamplingDiscreteFlow)
    stock = (
        isinstance(sampling, flow.CONST)
        and isinstance(sampling, kinds)
        and all(_unchanged(sampling, flow.CONST, name) for name in SCALINGS)
        and any(all(_unchanged(sampling, kind, name) for name in TIMES) for kind in kinds)
    )
    return "" if stock else f"model sampling {type(sampling).__name__}"


SCALINGS = ("calculate_input", "calculate_denoised", "noise_scaling", "inverse_noise_scaling")
TIMES = ("timestep", "percent_to_sigma")


def _unchanged(sampling: Any, kind: type[Any], name: str) -> bool:
    return getattr(type(sampling), name, None) is getattr(kind, name)


def _options(loop: Loop) -> str:
    for key, value in loop.options.items():
        if key not in OPTION_KEYS and key not in PLACES and _present(value):
            return key
    for key, value in loop.transformer_options.items():
        if key not in TRANSFORMER_KEYS and _present(value):
            return key
    return loop.guided.unknown()


def _skips(loop: Loop) -> str:
    """Stock guidance skips layers in calls of its own, around the DiT, and not in all of them."""
    return "skipped layers" if skipping.blocks(loop.transformer_options) else ""


def _present(value: Any) -> bool:
    """Whether an option says anything; a tensor does, whatever is in it."""
    empty = isinstance(value, (dict, list, tuple, str)) and not value
    return value is not None and value is not False and not empty


def _wrappers(loop: Loop) -> str:
    wrappers = loop.transformer_options.get("wrappers") or {}
    unknown = loop.guided.unknown((PREDICT_NOISE,))
    for kind in INNER_WRAPPERS:
        for key, functions in (wrappers.get(kind) or {}).items():
            if functions and key != WRAPPER and (key is not None or kind != PREDICT_NOISE or unknown):
                return f"{kind} wrapper {key or 'without a name'}"
    callbacks = loop.transformer_options.get("callbacks") or {}
    for kind in INNER_CALLBACKS:
        if any((callbacks.get(kind) or {}).values()):
            return f"{kind} callback"
    return ""


def code_around(loop: Loop) -> str:
    """What is around the model that no stock node is known for: a guider, a wrapper, a function; or ""."""
    known = loop.guided
    guider = "" if known.kind else f"guider {type(loop.guider).__name__}"
    wrapper = "model_function_wrapper" if loop.options.get("model_function_wrapper") else ""
    calc = "sampler_calc_cond_batch_function" if loop.options.get("sampler_calc_cond_batch_function") else ""
    return guider or known.unknown() or wrapper or calc or _wrappers(loop)


def _mask(loop: Loop) -> str:
    function = loop.options.get("denoise_mask_function")
    if loop.mask is None:
        return ""
    if function is not None and sampler_name.differential_strength(function) is None:
        return "denoise_mask_function"
    scale = type(loop.guider.inner_model).scale_latent_inpaint
    return "" if scale is comfy.model_base.BaseModel.scale_latent_inpaint else "inpaint scaling of this model"


def _timesteps(loop: Loop) -> str:
    """Some models noise parts of a latent to levels of their own; a whole loop has one per step."""
    own = type(loop.guider.inner_model).process_timestep
    if own is getattr(comfy.model_base.BaseModel, "process_timestep", own):
        return ""
    conds = [cond for side in loop.guided.asked.sides.values() for cond in side]
    masked = any("denoise_mask" in cond.get("model_conds", {}) for cond in conds)
    return "a noise level of its own for each frame" if masked else ""


def _tensors(loop: Loop) -> str:
    if loop.sigmas.ndim != 1 or len(loop.sigmas) < 2:
        return "no steps"
    shapes = getattr(loop.guider.inner_model, "latent_shapes", None)
    if shapes is not None and len(shapes) > 1:
        return "several latents in one"
    if loop.noise.device.type not in ("cpu", "cuda"):
        return f"noise made on {loop.noise.device.type}"
    return "" if isinstance(loop.extra_args.get("seed"), int) else "no seed"


def _callback(loop: Loop) -> str:
    """Stock callbacks look at x0 and the step; another might look at x, which stays in the engine."""
    if loop.callback is None or loop.callback.__module__ == PREVIEW_MODULE:
        return ""
    return f"callback {loop.callback.__module__}.{loop.callback.__qualname__}"


def _settings(loop: Loop) -> str:
    return "as asked" if loop.settings.path == "per_step" else ""


CHECKS: tuple[Callable[[Loop], str], ...] = (
    _settings,
    _guidance,
    _sampler,
    _sampling,
    _options,
    _skips,
    _wrappers,
    _mask,
    _timesteps,
    _tensors,
    _callback,
)
