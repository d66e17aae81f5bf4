"""From what crosses the wire to tensors on the device: trees of tensors and blobs, and a run's mask."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ...protocol.errors import InvalidRequestError
from ...protocol.messages.common import Mask
from ...protocol.torch import from_wire
from ...protocol.values import Blob, WireTensor, leaves, map_leaves
from ..sampling.inpaint import Differential, Inpaint
from .blobs import BlobStore
from .kept import Kept


def on_device(tree: Any, blobs: BlobStore, device: torch.device, kept: Kept | None = None) -> Any:
    """`tree` with wire tensors and blobs as tensors on `device`; MissingBlobError names all that lack.

    One tensor in several places stays one. `kept` has what earlier calls of the same run brought there.
    """
    held = blobs.get(leaf.digest for leaf in leaves(tree) if isinstance(leaf, Blob))
    there = kept or Kept()
    wires = {id(leaf): leaf for leaf in leaves(tree) if isinstance(leaf, WireTensor)}
    tensors = {key: there.tensor(wire, device) for key, wire in wires.items()}

    def place(leaf: Any) -> Any:
        if isinstance(leaf, Blob):
            return there.blob(leaf.digest, held[leaf.digest], device)
        return tensors[id(leaf)] if isinstance(leaf, WireTensor) else leaf

    return map_leaves(tree, place)


def own_tensor(wire: WireTensor, device: torch.device) -> Tensor:
    """A float32 tensor of our own on `device`, whatever becomes of the client's memory."""
    tensor = from_wire(wire)
    return tensor.to(device, torch.float32, copy=True)


def wire_bytes(tree: Any) -> int:
    """Bytes of tensors that `tree` brought, each once; blobs were counted when they came."""
    brought = {id(leaf): leaf for leaf in leaves(tree) if isinstance(leaf, WireTensor) and not leaf.same}
    return sum(leaf.nbytes for leaf in brought.values())


def inpaint_of(mask: Mask | None, shape: torch.Size, device: torch.device) -> Inpaint | None:
    """The mask of a run, spread over the latent's `shape`; InvalidRequestError when it does not fit."""
    if mask is None:
        return None
    tensor = own_tensor(mask.mask, device)
    try:
        spread = tensor.expand(shape)
    except RuntimeError as error:
        raise InvalidRequestError(
            f"The mask has shape {list(tensor.shape)}, which does not spread over a latent of {list(shape)}."
        ) from error
    soft = mask.differential
    differential = Differential(soft.strength, soft.sigma_min) if soft else None
    return Inpaint(spread, differential=differential)


def with_concat(x: Tensor, conditioning: Mapping[str, Any]) -> tuple[Tensor, dict[str, Any]]:
    """Move `c_concat` out of the conditioning and behind the channels of `x` [R, C, ...]."""
    rest = dict(conditioning)
    concat = rest.pop("c_concat", None)
    if concat is None:
        return x, rest
    if concat.shape[0] != x.shape[0] or concat.shape[2:] != x.shape[2:]:
        raise InvalidRequestError(
            f"c_concat has shape {list(concat.shape)}, which does not fit behind a latent of {list(x.shape)}."
        )
    return torch.cat([x, concat.to(x)], dim=1), rest
