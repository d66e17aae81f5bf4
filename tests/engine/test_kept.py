"""What a run has brought to the device is not brought again while the client says that it is the same."""

from __future__ import annotations

import torch

from outboard.engine.rank.blobs import BlobStore
from outboard.engine.rank.conditioning import on_device, wire_bytes
from outboard.engine.rank.kept import Kept
from outboard.protocol.tensors import digest
from outboard.protocol.torch import to_wire
from outboard.protocol.values import Blob, Place, WireTensor

#: A device to which there is a way, and from which none: enough to count journeys.
META = torch.device("meta")
PLACE = Place("outboard-e1-0123456789abcdef-1", 64)


def wire(*, same: bool, place: Place | None = PLACE, value: float = 1.0) -> WireTensor:
    plain = to_wire(torch.full((2, 3), value))
    return WireTensor(plain.dtype, plain.shape, plain.data, place, same)


def test_the_same_is_brought_once_until_it_is_another() -> None:
    kept = Kept()
    new, same = kept.tensor(wire(same=False), META), kept.tensor(wire(same=True), META)
    assert new is not same
    assert kept.tensor(wire(same=True), META) is same
    assert kept.tensor(wire(same=True, place=Place(PLACE.segment, 128)), META) is not same
    assert kept.tensor(wire(same=False), META) is not same
    assert kept.tensor(wire(same=True), META) is not same


def test_what_has_no_place_is_never_kept() -> None:
    kept = Kept()
    assert kept.tensor(wire(same=True, place=None), META) is not kept.tensor(
        wire(same=True, place=None), META
    )


def test_on_the_cpu_a_tensor_is_a_view_whatever_is_said_of_it() -> None:
    kept, cpu = Kept(), torch.device("cpu")
    assert kept.tensor(wire(same=True, value=1.0), cpu)[0, 0] == 1
    assert kept.tensor(wire(same=True, value=2.0), cpu)[0, 0] == 2


def test_a_blob_is_brought_once() -> None:
    blobs, kept, plain = BlobStore(1 << 20), Kept(), to_wire(torch.ones(4))
    blobs.put(digest(plain), plain)
    tree = {"context": Blob(digest(plain))}
    first = on_device(tree, blobs, META, kept)["context"]
    assert on_device(tree, blobs, META, kept)["context"] is first
    assert on_device(tree, blobs, META)["context"] is not first


def test_one_tensor_in_several_places_stays_one() -> None:
    shared = wire(same=False)
    found = on_device({"input": [shared, None, shared], "output": [shared]}, BlobStore(1), META)
    assert found["input"][0] is found["input"][2] is found["output"][0]


def test_bytes_are_counted_once_and_only_when_they_came() -> None:
    shared = wire(same=False)
    assert wire_bytes([shared, {"again": shared}, wire(same=True)]) == shared.nbytes == 24
