"""The seam between ComfyUI and the engine, one DiT call at a time.

It stands in for the skeleton's innermost forward, so that everything ComfyUI and its nodes do around the
diffusion model stays in ComfyUI.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch

from . import refusals
from .conditioning import wire
from .remote import RemoteModel

INNER = "_forward"
OUTER = "forward"


def install(diffusion_model: Any, remote: RemoteModel) -> None:
    """Send every call of `diffusion_model`, a skeleton on meta, to `remote`, from below its own wrappers."""
    name = INNER if hasattr(type(diffusion_model), INNER) else OUTER
    setattr(diffusion_model, name, Boundary(remote, getattr(type(diffusion_model), name)))


class Boundary:
    """A family's forward, by its own signature: (x, timestep, arguments by name) -> v of x's shape."""

    def __init__(self, remote: RemoteModel, forward: Any) -> None:
        self._remote = remote
        self._signature = inspect.signature(forward)

    def __call__(self, *args: Any, **keywords: Any) -> torch.Tensor:
        given = self._by_name(args, keywords)
        x, timestep = (given.pop(name) for name in list(given)[:2])
        options: Mapping[str, Any] = given.pop("transformer_options", None) or {}
        refusals.check_options(options)
        return self._remote.predict(
            x,
            timestep,
            _sigma(options),
            _branches(options),
            wire({**given, "rope_options": options.get("rope_options")}),
        )

    def _by_name(self, args: tuple[Any, ...], keywords: Mapping[str, Any]) -> dict[str, Any]:
        bound = self._signature.bind(None, *args, **keywords).arguments
        given: dict[str, Any] = {}
        for name, value in list(bound.items())[1:]:
            parameter = self._signature.parameters[name]
            if parameter.kind is inspect.Parameter.VAR_KEYWORD:
                given.update(value)
            elif not _left_out(value, parameter.default):
                given[name] = value
        return given


def _left_out(value: Any, default: Any) -> bool:
    """Whether ComfyUI filled in a default that says nothing: no, none, or an empty list."""
    empty = value is None or value is False or (isinstance(value, (list, tuple)) and not value)
    return empty and default is not inspect.Parameter.empty and value == default


def _branches(options: Mapping[str, Any]) -> list[str]:
    """An id for each group of rows. ComfyUI may give conds of two sides one uuid, so the side is in it."""
    sides, uuids = options.get("cond_or_uncond", ()), options.get("uuids", ())
    return [f"{side}.{uuid}" for side, uuid in zip(sides, uuids, strict=False)]


def _sigma(options: Mapping[str, Any]) -> float | None:
    sigmas = options.get("sigmas")
    return float(sigmas[0]) if isinstance(sigmas, torch.Tensor) and sigmas.numel() else None
