"""torch tensors cross the wire bit for bit, and without copies where that is possible."""

from __future__ import annotations

import pytest
import torch

from outboard.protocol.errors import ProtocolError
from outboard.protocol.torch import device_of, from_wire, pack_tree, to_wire, unpack_tree
from outboard.protocol.values import ITEM_SIZES, Blob, WireTensor


def example(name: str) -> torch.Tensor:
    raw = (torch.arange(48) % (2 if name == "bool" else 251)).to(torch.uint8)
    return raw.view(getattr(torch, name)).reshape(2, 3, -1)


@pytest.mark.parametrize("name", ITEM_SIZES)
def test_every_dtype_comes_back_bit_for_bit(name: str) -> None:
    tensor = example(name)
    wire = to_wire(tensor)
    again = from_wire(wire)
    assert (wire.dtype, wire.shape) == (name, tuple(tensor.shape))
    assert again.dtype == tensor.dtype
    assert torch.equal(again.view(torch.uint8), tensor.view(torch.uint8))


@pytest.mark.parametrize("shape", [(), (0,), (2, 0, 3), (1,), (1, 1, 1)])
def test_scalars_and_empty_tensors_come_back(shape: tuple[int, ...]) -> None:
    tensor = torch.ones(shape)
    assert torch.equal(from_wire(to_wire(tensor)), tensor)


def test_contiguous_tensors_are_viewed_and_others_are_copied() -> None:
    tensor = torch.zeros(4, 4)
    assert from_wire(to_wire(tensor)).data_ptr() == tensor.data_ptr()
    assert torch.equal(from_wire(to_wire(tensor.t())), tensor.t())
    assert from_wire(to_wire(tensor), writable=True).data_ptr() != tensor.data_ptr()
    assert torch.equal(from_wire(to_wire(torch.arange(10)[::3])), torch.tensor([0, 3, 6, 9]))


def test_the_bytes_outlive_the_tensor_they_came_from() -> None:
    wire = to_wire(torch.full((1000,), 7.0))
    assert torch.equal(from_wire(wire), torch.full((1000,), 7.0))


def test_bytes_that_lie_askew_or_are_read_only_are_copied() -> None:
    memory = memoryview(bytearray(17))
    memory[1:] = to_wire(torch.arange(4, dtype=torch.float32)).data
    askew = from_wire(WireTensor("float32", (4,), memory[1:]))
    assert askew.data_ptr() % 4 == 0
    assert torch.equal(askew, torch.arange(4.0))
    fixed = from_wire(WireTensor("float32", (1,), memoryview(bytes(4))))
    fixed += 1
    assert fixed.item() == 1


def test_gradients_do_not_travel() -> None:
    assert torch.equal(from_wire(to_wire(torch.ones(2, requires_grad=True))), torch.ones(2))


@pytest.mark.parametrize("tensor", [torch.zeros(2, dtype=torch.complex64), torch.zeros(2).to_sparse()])
def test_what_has_no_wire_form_is_refused(tensor: torch.Tensor) -> None:
    with pytest.raises(ProtocolError, match="cannot be sent"):
        to_wire(tensor)


def test_trees_are_packed_and_unpacked() -> None:
    tree = {"a": [torch.ones(2), None, 1.5], "b": {"c": torch.zeros(1)}, "d": Blob("0" * 32)}
    packed = pack_tree(tree)
    assert isinstance(packed["a"][0], WireTensor)
    again = unpack_tree(packed)
    assert torch.equal(again["a"][0], tree["a"][0])  # type: ignore[index]
    assert again["a"][1:] == [None, 1.5]
    assert again["d"] == Blob("0" * 32)


@pytest.mark.parametrize(
    ("described", "device"),
    [("cuda:1 NVIDIA H200", "cuda:1"), ("cuda:0", "cuda:0"), ("cpu", "cpu"), ("", "cpu")],
)
def test_a_described_device_is_a_device_again(described: str, device: str) -> None:
    assert device_of(described) == torch.device(device)
