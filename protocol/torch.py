"""torch tensors to and from the wire; the only file of the protocol that needs torch."""

from __future__ import annotations

import ctypes
import sys
from typing import Any

import torch

from .errors import ProtocolError
from .tensors import flat
from .values import ITEM_SIZES, Tree, WireTensor, map_leaves

_NAMES = {getattr(torch, name): name for name in ITEM_SIZES}


def to_wire(tensor: torch.Tensor) -> WireTensor:
    """The tensor as bytes. A contiguous CPU tensor is viewed, not copied: do not write into it meanwhile."""
    name = _name_of(tensor)
    dense = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous()
    data = dense.reshape(-1).view(torch.uint8).numpy().data if dense.numel() else memoryview(b"")
    return WireTensor(name, tuple(dense.shape), data)


def _name_of(tensor: torch.Tensor) -> str:
    name = _NAMES.get(tensor.dtype)
    if name is None:
        raise ProtocolError(
            f"a tensor of {tensor.dtype} cannot be sent", hint=f"Cast it: {', '.join(ITEM_SIZES)}."
        )
    if tensor.layout != torch.strided:
        raise ProtocolError(f"a {tensor.layout} tensor cannot be sent", hint="Make it dense first.")
    return name


class TorchSource:
    """A tensor for a shelf (shelf.py): one copy takes it from whatever device it is on to shared memory."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.owner = tensor
        self.dtype = _name_of(tensor)
        self.shape = tuple(tensor.shape)
        self.nbytes = tensor.numel() * tensor.element_size()
        self._tensor = tensor.detach().resolve_conj().resolve_neg()

    def write(self, target: memoryview) -> None:
        """Copy the bytes to `target`, of just their size."""
        if self._tensor.is_contiguous() and self._tensor.device.type == "cpu":
            # Python's copy is the C library's, which writes past the caches; torch's is not as quick.
            target[:] = flat(to_wire(self._tensor).data)
        else:
            self._over(target).copy_(self._tensor)

    def matches(self, target: memoryview) -> bool:
        """Whether the bytes are those in `target`, bit by bit."""
        return same_bits(self._tensor.cpu().contiguous(), self._over(target))

    def _over(self, target: memoryview) -> torch.Tensor:
        return torch.frombuffer(target, dtype=self._tensor.dtype).reshape(self.shape)


def same_bits(one: torch.Tensor, two: torch.Tensor) -> bool:
    """Whether two contiguous CPU tensors of one dtype and shape hold the same bytes; NaN is like NaN."""
    return bool(_compare(one.data_ptr(), two.data_ptr(), one.numel() * one.element_size()) == 0)


def _c_compare() -> Any:
    """The C library's memcmp: half the time of torch.equal, which goes by elements, and without the GIL."""
    library = ctypes.CDLL("msvcrt" if sys.platform == "win32" else None)
    compare = library.memcmp
    compare.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
    return compare


_compare = _c_compare()


def from_wire(wire: WireTensor, *, writable: bool = False) -> torch.Tensor:
    """A CPU tensor over the wire's own bytes, valid as long as it is held.

    It must not be written to, because the bytes may be a peer's; `writable` makes a copy that may. Bytes
    that lie askew for the dtype, or are read-only, are copied in any case.
    """
    dtype: torch.dtype = getattr(torch, wire.dtype)
    if wire.nbytes == 0:
        return torch.empty(wire.shape, dtype=dtype)
    data = flat(wire.data)
    if writable or memoryview(data).readonly:
        data = memoryview(bytearray(data))
    raw = torch.frombuffer(data, dtype=torch.uint8)
    if raw.data_ptr() % dtype.itemsize:
        raw = raw.clone()
    return raw.view(dtype).reshape(wire.shape)


def pack_tree(tree: Tree) -> Tree:
    """`tree` with every torch tensor as a WireTensor."""
    return map_leaves(tree, lambda leaf: to_wire(leaf) if isinstance(leaf, torch.Tensor) else leaf)


def unpack_tree(tree: Tree, *, writable: bool = False) -> Tree:
    """`tree` with every WireTensor as a torch tensor; blobs must have been replaced before."""
    return map_leaves(
        tree, lambda leaf: from_wire(leaf, writable=writable) if isinstance(leaf, WireTensor) else leaf
    )


def device_of(described: str) -> torch.device:
    """The device behind what `welcome` says: "cuda:0 NVIDIA H200" -> cuda:0, "cpu" -> cpu."""
    return torch.device(described.split(" ", 1)[0] or "cpu")
