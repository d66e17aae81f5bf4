"""Tensors that stay in shared memory: copied when they are new or changed, and only then."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgpack
import pytest
import torch

from outboard.protocol.arena import Arena, Scope
from outboard.protocol.codec import Envelope, decode, encode
from outboard.protocol.errors import ProtocolError
from outboard.protocol.messages import client
from outboard.protocol.shelf import Shelf
from outboard.protocol.shm import session_prefix
from outboard.protocol.torch import TorchSource, from_wire
from outboard.protocol.values import WireTensor
from wire_engine import Session, predict
from wire_samples import tensor

PREFIX = session_prefix("e1", "s1")
MIB = 1 << 20


@pytest.fixture
def arena(tmp_path: Path) -> Arena:
    return Arena(PREFIX, root=tmp_path, capacity=40 * MIB)


@pytest.fixture
def shelf(arena: Arena) -> Shelf:
    return Shelf(arena)


def sent(shelf: Shelf, *tensors: torch.Tensor) -> list[WireTensor]:
    """One message's tensors, as they leave at last."""
    shelf.begin()
    wires = [placed(shelf, one) for one in tensors]
    return wires if shelf.settle() else [placed(shelf, one) for one in tensors]


def placed(shelf: Shelf, one: torch.Tensor) -> WireTensor:
    return shelf.place(TorchSource(one)) or pytest.fail("there is no room")


def holds(wire: WireTensor, one: torch.Tensor) -> bool:
    return torch.equal(from_wire(wire).view(torch.uint8), one.contiguous().view(torch.uint8))


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_an_unchanged_object_stays_where_it_is(shelf: Shelf, mode: Callable[[], torch.no_grad]) -> None:
    with mode():
        one = torch.randn(4, 5)
        (first,), (second,) = sent(shelf, one), sent(shelf, one)
    assert (first.same, second.same) == (False, True)
    assert first.place == second.place
    assert holds(second, one)


WRITES: dict[str, Callable[[torch.Tensor], object]] = {
    "in place": lambda one: one.mul_(2),
    "a view": lambda one: one.t()[1].zero_(),
    "data": lambda one: one.data.add_(1),
    "numpy": lambda one: one.numpy().__setitem__((0, 0), 7),
    "transposed": lambda one: one.t_(),
    "a NaN": lambda one: one[0, 0].fill_(float("nan")),
    "the sign of a zero": lambda one: one[3, 3].neg_(),
}


@pytest.mark.parametrize("write", WRITES)
def test_whatever_was_written_is_noticed_before_the_answer_is_used(shelf: Shelf, write: str) -> None:
    with torch.inference_mode():
        one, other = torch.arange(16.0).reshape(4, 4), torch.ones(9)
        one[3, 3] = 0
        sent(shelf, one, other)
        WRITES[write](one)
        shelf.begin()
        presumed = placed(shelf, one), placed(shelf, other)
        assert [wire.same for wire in presumed] == [True, True]
        assert not shelf.settle()
        again = placed(shelf, one), placed(shelf, other)
        assert [wire.same for wire in again] == [False, True]
        assert holds(again[0], one)
        assert shelf.settle()


def test_what_changed_once_is_looked_at_before_it_is_sent(shelf: Shelf) -> None:
    one = torch.zeros(8)
    sent(shelf, one)
    for value in range(3):
        one.fill_(value + 1)
        sent(shelf, one)
    one.fill_(9)
    shelf.begin()
    wire = placed(shelf, one)
    assert not wire.same
    assert holds(wire, one)
    assert shelf.settle()
    assert sent(shelf, one)[0].same


def test_one_object_has_one_place_in_a_message(shelf: Shelf) -> None:
    one, equal = torch.ones(8), torch.ones(8)
    wires = sent(shelf, one, equal, one)
    assert wires[0] is wires[2]
    assert wires[0].place != wires[1].place


def test_new_objects_take_the_places_of_those_that_are_gone(shelf: Shelf, arena: Arena) -> None:
    places: set[object] = set()
    for step in range(4):
        wires = sent(shelf, *(torch.full((1000,), float(step + block)) for block in range(3)))
        assert not any(wire.same for wire in wires)
        assert [from_wire(wire)[0].item() for wire in wires] == [step, step + 1, step + 2]
        places.update(wire.place for wire in wires)
    assert len(places) == 3
    assert arena.nbytes == 8 * MIB


def test_objects_that_take_turns_keep_their_places_and_those_that_wait_lose_them(shelf: Shelf) -> None:
    one, two = torch.ones(8), torch.zeros(8)
    sent(shelf, one)
    sent(shelf, two)
    assert sent(shelf, one)[0].same
    for step in range(20):
        sent(shelf, torch.full((8,), float(step)), two)
    assert not sent(shelf, one)[0].same


def test_a_strided_tensor_is_copied_in_order(shelf: Shelf) -> None:
    one = torch.arange(12.0).reshape(3, 4).t()
    wire = sent(shelf, one)[0]
    assert wire.shape == (4, 3)
    assert torch.equal(from_wire(wire), one)
    assert sent(shelf, one)[0].same


@pytest.mark.gpu
def test_a_tensor_on_a_gpu_is_copied_and_compared_from_there(shelf: Shelf) -> None:
    one = torch.arange(12.0, device="cuda").reshape(3, 4).t()
    wire = sent(shelf, one)[0]
    assert torch.equal(from_wire(wire), one.cpu())
    assert sent(shelf, one)[0].same
    one.data[2, 1] = 99
    again = sent(shelf, one)[0]
    assert not again.same
    assert torch.equal(from_wire(again), one.cpu())


def test_without_room_there_is_no_place_and_a_reason(arena: Arena, shelf: Shelf) -> None:
    shelf.begin()
    assert shelf.place(TorchSource(torch.ones(41 * MIB, dtype=torch.uint8))) is None
    assert str(40 * MIB) in shelf.shortage
    assert placed(shelf, torch.ones(3)).place is not None


def test_a_set_of_many_residuals_fits_few_segments(arena: Arena, tmp_path: Path) -> None:
    shelf = Shelf(arena)
    wires = sent(shelf, *(torch.full((100, 1000), float(number)) for number in range(57)))
    assert [int(from_wire(wire)[0, 0]) for wire in wires] == list(range(57))
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize("reusable", [True, False])
def test_closed_it_gives_its_room_back_or_up(arena: Arena, tmp_path: Path, reusable: bool) -> None:
    shelf = Shelf(arena)
    sent(shelf, torch.ones(8))
    shelf.close(reusable=reusable)
    assert len(list(tmp_path.iterdir())) == reusable
    assert arena.lease(8 * MIB) is not None
    assert len(list(tmp_path.iterdir())) == 1


def test_the_message_says_what_is_the_same(arena: Arena, shelf: Shelf) -> None:
    one = torch.ones(100)

    def arrived() -> WireTensor:
        shelf.begin()
        message = predict(tensor(1), residual=placed(shelf, one))
        frames = encode(Envelope(message, "r1"), Scope(arena).place)
        assert len(frames) == 3
        read = decode(frames, opener=lambda *place: memoryview(bytearray(place[2]))).message
        assert isinstance(read, client.Predict)
        found: WireTensor = read.conditioning["residual"]
        return found

    first, second = arrived(), arrived()
    assert (first.same, second.same) == (False, True)
    assert first.place == second.place


@pytest.mark.parametrize("wrong", [1, "yes", None])
def test_same_is_a_boolean(shelf: Shelf, arena: Arena, wrong: object) -> None:
    shelf.begin()
    frames = encode(
        Envelope(predict(tensor(1), residual=placed(shelf, torch.ones(9))), "r1"), Scope(arena).place
    )
    top = msgpack.unpackb(frames[0])
    next(entry for entry in top["tensors"] if "segment" in entry)["same"] = wrong
    with pytest.raises(ProtocolError, match="boolean"):
        decode([msgpack.packb(top), *frames[1:]], opener=lambda *place: memoryview(bytearray(place[2])))


def test_it_reaches_the_engine_of_a_session(session: Session) -> None:
    one = torch.arange(1000.0)
    with session() as (client_, engine):
        shelf = client_.shelf() or pytest.fail("there is no shared memory")
        for _ in range(2):
            shelf.begin()
            client_.request(predict(tensor(1), residual=placed(shelf, one)))
            assert shelf.settle()
        seen = [message for message in engine.seen if isinstance(message, client.Predict)]
        found = [message.conditioning["residual"] for message in seen]
        assert [wire.same for wire in found] == [False, True]
        assert all(holds(wire, one) for wire in found)
    with session(shared_memory=False) as (client_, _):
        assert client_.shelf() is None
