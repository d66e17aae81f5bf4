"""Conditioning as ComfyUI processed it -> the trees of tensors and scalars that cross the wire."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch

from ..protocol.errors import UnsupportedRequestError
from ..protocol.messages.common import Area, Branch, Region
from ..protocol.torch import to_wire
from ..protocol.values import Tree, map_leaves

#: apply_model's name -> the raw diffusion model's.
RENAMED = {"c_crossattn": "context"}
#: Arguments that reach every diffusion model and that only other families read.
UNREAD = frozenset({"crossattn_controlnet", "transformer_options"})


def branch(side: str, cond: Mapping[str, Any], shape: Sequence[int], extra: Mapping[str, Any]) -> Branch:
    """One processed cond of a guider, for a latent of `shape` [B, C, ...], as its DiT call would get it.

    ComfyUI gives conds of two sides one uuid when it makes the one of the other, so `side` is in the id.
    """
    area = area_of(cond, shape)
    given: dict[str, Any] = dict(extra)
    for name, value in cond["model_conds"].items():
        given[RENAMED.get(name, name)] = _rows(value, shape[0], area)
    return Branch(
        id=f"{side}.{cond['uuid']}",
        conditioning=wire(given),
        strength=float(cond.get("strength", 1.0)),
        area=area,
        region=_region(cond, shape[0]),
        start=_sigma(cond, "timestep_start"),
        end=_sigma(cond, "timestep_end"),
        fallback="default" in cond,
    )


def area_of(cond: Mapping[str, Any], shape: Sequence[int]) -> Area | None:
    """The box that a processed cond sees of a latent of `shape`, in latent units and within it.

    ComfyUI's areas are lengths, then offsets; one of fewer dimensions than the latent takes all of the first
    ones, one of more leaves its last ones out. Raises UnsupportedRequestError for one outside the latent.
    """
    if cond.get("area") is None:
        return None
    given, lengths = list(cond["area"]), list(shape[2:])
    sizes, offsets = given[: len(given) // 2], given[len(given) // 2 :]
    missing = max(len(lengths) - len(sizes), 0)
    sizes = [*lengths[:missing], *sizes][: len(lengths)]
    offsets = [*[0] * missing, *offsets][: len(lengths)]
    fitted = [min(length - at, size) for length, size, at in zip(lengths, sizes, offsets, strict=True)]
    if min(fitted) < 1 or min(offsets) < 0:
        raise UnsupportedRequestError(f"an area of {sizes} at {offsets}, outside the latent")
    return Area(size=[int(size) for size in fitted], offset=[int(at) for at in offsets])


def wire(arguments: Mapping[str, Any]) -> dict[str, Tree]:
    """`arguments` of a DiT without what is None or unread, tensors as WireTensor.

    Raises UnsupportedRequestError naming an argument that is neither tensors nor plain data.
    """
    return {
        name: map_leaves(value, partial(_leaf, name))
        for name, value in arguments.items()
        if value is not None and name not in UNREAD
    }


def _rows(value: Any, rows: int, area: Area | None) -> Any:
    """The data of one of ComfyUI's CONDs, cut to `area`; a single row stays one, the engine repeats it."""
    data = value.cond
    single = isinstance(data, torch.Tensor) and data.ndim > 0 and data.shape[0] == 1
    box = None if area is None else [*area.size, *area.offset]
    return value.process_cond(batch_size=1 if single else rows, area=box).cond


def _region(cond: Mapping[str, Any], rows: int) -> Region | None:
    mask = cond.get("mask")
    if mask is None:
        return None
    strength = float(cond.get("mask_strength", 1.0))
    return Region(mask=to_wire(mask[:rows].detach().float().cpu()), strength=strength)


def _sigma(cond: Mapping[str, Any], key: str) -> float | None:
    return None if cond.get(key) is None else float(cond[key])


def _leaf(name: str, leaf: Any) -> Any:
    if isinstance(leaf, torch.Tensor):
        return to_wire(leaf.detach().cpu())
    if leaf is None or isinstance(leaf, (bool, int, float, str)):
        return leaf
    raise UnsupportedRequestError(
        f"The conditioning argument {name!r} holds a {type(leaf).__name__}, which is not data.",
        hint="Not yet supported; use the stock loader (UNETLoader) for this graph.",
    )
