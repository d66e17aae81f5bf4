"""What a graph says of the step cache, and when a loop in ComfyUI may be cached at all."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from ..engine.cache.choice import Choice
from ..protocol.errors import InvalidRequestError
from ..protocol.messages.cache import CacheSettings, Schedule
from ..protocol.torch import to_wire
from . import sampler_name
from .choice import CACHE_OPTION
from .eligibility import Loop, code_around
from .patcher import OutboardPatcher

#: Options of a MODEL with which one conditioning may be asked about several pictures in a step.
SPLITTERS = ("context_handler",)


def with_cache(model: Any, settings: CacheSettings) -> Any:
    """A clone of `model` whose runs are cached by `settings`, in place of what it had.

    Raises InvalidRequestError for settings that cannot be, and for a MODEL that no engine computes.
    """
    if not isinstance(model, OutboardPatcher):
        raise InvalidRequestError(
            "The step cache has no effect on this MODEL: it does not come from an Outboard loader.",
            hint="Load it with Outboard UNET Loader, or turn the step cache off.",
        )
    check(settings)
    cached = model.clone()
    cached.model_options[CACHE_OPTION] = settings
    return cached


def check(settings: CacheSettings) -> None:
    """Raise InvalidRequestError when `settings` contradict themselves, whatever the run."""
    choice = Choice.asked(settings, "Outboard Cache Settings")
    if choice is not None:
        choice.settings()


def settings_of(options: Mapping[str, Any]) -> CacheSettings | None:
    """The settings in a MODEL's `options`; None for the engine's own."""
    found: CacheSettings | None = options.get(CACHE_OPTION)
    return found


def schedule_of(loop: Loop) -> Schedule:
    """`loop` as the engine must know it to place each of its calls."""
    sampler = loop.sampler
    options = getattr(sampler, "extra_options", {})
    return Schedule(
        sampler=sampler_name.name_of(sampler, loop.samplers) or sampler_name.label_of(sampler),
        sampler_options={name: value for name, value in options.items() if sampler_name.is_plain(value)},
        sigmas=to_wire(loop.sigmas.detach().to("cpu", torch.float32)),
        objection=objection(loop),
    )


def objection(loop: Loop) -> str:
    """Why a branch and a row of `loop` may be several pictures in turn; "" when they are one.

    Windows, tiles and guiders of others call the model as often as they like, on whatever they like.
    """
    code = next((key for key in SPLITTERS if loop.options.get(key) is not None), "") or code_around(loop)
    if code:
        return f"{code} may call the model for several pictures in one step."
    for side, conds in loop.guided.asked.sides.items():
        if len({cond["uuid"] for cond in conds}) < len(conds):
            return f"two {side} conditionings have one uuid, and cannot be told apart."
    return ""
