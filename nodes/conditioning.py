"""Conditioning as ComfyUI processed it -> the trees of tensors and scalars that cross the wire."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch

from ..protocol.errors import UnsupportedRequestError
from ..protocol.messages.common import Branch
from ..protocol.torch import to_wire
from ..protocol.values import Tree, map_leaves

#: apply_model's name -> the raw diffusion model's.
RENAMED = {"c_crossattn": "context"}
#: Arguments that reach every diffusion model and that only other families read: a Wan's reference, only those
#: with a `ref_conv`, whose files the engine does not open.
UNREAD = frozenset({"crossattn_controlnet", "reference_latent", "transformer_options"})


def branch(cond: Mapping[str, Any], rows: int, extra: Mapping[str, Any]) -> Branch:
    """One processed cond of a guider, for a batch of `rows`, as the arguments its DiT call would get."""
    given: dict[str, Any] = dict(extra)
    for name, value in cond["model_conds"].items():
        given[RENAMED.get(name, name)] = _rows(value, rows)
    return Branch(id=str(cond["uuid"]), conditioning=wire(given))


def wire(arguments: Mapping[str, Any]) -> dict[str, Tree]:
    """`arguments` of a DiT without what is None or unread, tensors as WireTensor.

    Raises UnsupportedRequestError naming an argument that is neither tensors nor plain data.
    """
    return {
        name: map_leaves(value, partial(_leaf, name))
        for name, value in arguments.items()
        if value is not None and name not in UNREAD
    }


def _rows(value: Any, rows: int) -> Any:
    """The data of one of ComfyUI's CONDs; a single row is left single, the engine repeats it."""
    data = value.cond
    if isinstance(data, torch.Tensor) and data.ndim > 0 and data.shape[0] == 1:
        return data
    return value.process_cond(batch_size=rows, area=None).cond


def _leaf(name: str, leaf: Any) -> Any:
    if isinstance(leaf, torch.Tensor):
        return to_wire(leaf.detach().cpu())
    if leaf is None or isinstance(leaf, (bool, int, float, str)):
        return leaf
    raise UnsupportedRequestError(
        f"The conditioning argument {name!r} holds a {type(leaf).__name__}, which is not data.",
        hint="Not yet supported; use the stock loader (UNETLoader) for this graph.",
    )
