"""The client's own segments: reused, bounded, and gone in the end."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from pathlib import Path

import pytest

from outboard.protocol.arena import THRESHOLD, Arena, Scope, Slots
from outboard.protocol.errors import ProtocolError
from outboard.protocol.messages.common import Slot
from outboard.protocol.shm import Segment, session_prefix
from outboard.protocol.values import Place
from wire_samples import tensor

PREFIX = session_prefix("e1", "s1")
MIB = 1 << 20


@pytest.fixture
def arena(tmp_path: Path) -> Arena:
    return Arena(PREFIX, root=tmp_path, capacity=40 * MIB)


def lease(arena: Arena, nbytes: int) -> Segment:
    return arena.lease(nbytes) or pytest.fail("there is no room")


def test_a_released_segment_is_used_again(arena: Arena, tmp_path: Path) -> None:
    first = lease(arena, MIB)
    second = lease(arena, MIB)
    assert first is not second
    arena.release(first)
    assert lease(arena, MIB // 2) is first
    assert len(list(tmp_path.iterdir())) == 2


def test_the_smallest_fitting_segment_is_taken(arena: Arena) -> None:
    large, small = lease(arena, 4 * MIB), lease(arena, 2 * MIB)
    arena.release(large)
    arena.release(small)
    assert lease(arena, MIB) is small


def test_capacity_is_kept_free_segments_make_room(arena: Arena, tmp_path: Path) -> None:
    first = lease(arena, 30 * MIB)
    assert arena.lease(30 * MIB) is None
    arena.release(first)
    assert lease(arena, 35 * MIB).size == 35 * MIB
    assert len(list(tmp_path.iterdir())) == 1


def test_a_full_disk_means_no_segment(arena: Arena, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int, offset: int, length: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    assert arena.lease(1) is None
    assert "No space left on device" in arena.shortage
    assert Scope(arena).place(tensor(THRESHOLD)) is None


def test_a_scope_places_large_tensors_side_by_side(arena: Arena) -> None:
    scope = Scope(arena)
    assert scope.place(tensor(8)) is None
    first, second = scope.place(tensor(THRESHOLD + 1)), scope.place(tensor(THRESHOLD))
    assert first is not None
    assert second is not None
    assert first.segment == second.segment
    assert second.offset % 64 == 0
    assert second.offset >= 4 * (THRESHOLD + 1)
    scope.close(reusable=True)
    assert Scope(arena).place(tensor(THRESHOLD)) == Place(first.segment, 0)


def test_an_abandoned_request_gives_its_segments_up(arena: Arena, tmp_path: Path) -> None:
    scope = Scope(arena)
    scope.place(tensor(THRESHOLD))
    scope.close(reusable=False)
    assert list(tmp_path.iterdir()) == []
    assert arena.nbytes == 0


def test_a_slot_is_free_again_when_the_last_view_is_gone(arena: Arena) -> None:
    slots = Slots(arena)
    slot = slots.lend(MIB) or pytest.fail("there is no room")
    view = slots.take(slot, slot.segment, 0, 100)[10:20]
    other = slots.lend(MIB)
    assert other is not None
    assert other.segment != slot.segment
    del view
    gc.collect()
    assert (slots.lend(MIB) or pytest.fail("no room")).segment == slot.segment


def test_a_reply_outside_its_slot_is_refused(arena: Arena) -> None:
    slots = Slots(arena)
    slot = slots.lend(MIB) or pytest.fail("there is no room")
    other = slots.lend(MIB) or pytest.fail("there is no room")
    for name, offset, nbytes in ((other.segment, 0, 1), (slot.segment, 64, MIB), (f"{PREFIX}99", 0, 1)):
        with pytest.raises(ProtocolError):
            slots.take(slot, name, offset, nbytes)
    with pytest.raises(ProtocolError):
        slots.take(None, slot.segment, 0, 1)
    with pytest.raises(ProtocolError):
        slots.take(Slot(segment=f"{PREFIX}99", offset=0, nbytes=9), f"{PREFIX}99", 0, 1)


def test_close_removes_everything_and_views_stay(arena: Arena, tmp_path: Path) -> None:
    segment = lease(arena, MIB)
    slots = Slots(arena)
    slot = slots.lend(MIB) or pytest.fail("there is no room")
    view = slots.take(slot, slot.segment, 0, 8)
    arena.close()
    arena.close()
    assert list(tmp_path.iterdir()) == []
    view[:] = b"12345678"
    assert segment.view(0, 1)
    assert arena.lease(1) is None


@pytest.mark.parametrize("end", ["", "raise SystemExit(3)", "del arena, segment"])
def test_nothing_is_left_when_the_process_ends(tmp_path: Path, end: str) -> None:
    code = (
        "import sys; from pathlib import Path; from outboard.protocol.arena import Arena\n"
        f"arena = Arena('{PREFIX}', root=Path(sys.argv[1])); segment = arena.lease(1)\n{end}"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False, timeout=60)
    assert list(tmp_path.iterdir()) == []


def test_a_forked_child_leaves_its_parents_segments_alone(tmp_path: Path) -> None:
    code = (
        "import os, sys; from pathlib import Path; from outboard.protocol.arena import Arena\n"
        f"arena = Arena('{PREFIX}', root=Path(sys.argv[1])); arena.lease(1)\n"
        "child = os.fork()\nif not child: sys.exit()\nos.waitpid(child, 0)\n"
        "sys.exit(len(os.listdir(sys.argv[1])))"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False, timeout=60)
    assert done.returncode == 1
