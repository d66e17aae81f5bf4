"""Segments: who may open which, and that none outlives its owner."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from outboard.protocol.errors import ProtocolError
from outboard.protocol.messages.common import Slot
from outboard.protocol.shm import (
    Segment,
    Segments,
    engine_prefix,
    host_identity,
    session_prefix,
    sweep,
    sweep_abandoned,
)
from outboard.protocol.values import Place
from wire_samples import tensor

PREFIX = session_prefix("e1", "s1")


@pytest.fixture
def segment(tmp_path: Path) -> Segment:
    segment = Segment.create(tmp_path / f"{PREFIX}1", 4096)
    segment.view(0, 4)[:] = b"here"
    return segment


def test_names_do_not_show_the_session() -> None:
    assert session_prefix("e1", "secret").startswith("outboard-e1-")
    assert "secret" not in session_prefix("e1", "secret")
    assert session_prefix("e1", "a") != session_prefix("e1", "b")


@pytest.mark.parametrize("engine", ["", "E1", "../x", "a-b", "a/b", "x" * 33])
def test_an_engine_id_that_makes_no_name_is_refused(engine: str) -> None:
    with pytest.raises(ProtocolError):
        engine_prefix(engine)


def test_the_engine_sees_what_the_client_wrote_and_the_other_way_round(
    tmp_path: Path, segment: Segment
) -> None:
    view = Segments("e1", root=tmp_path).opener("s1")(segment.name, 0, 4)
    assert bytes(view) == b"here"
    view[:] = b"back"
    assert bytes(segment.view(0, 4)) == b"back"


def test_segments_are_private_to_the_user(segment: Segment) -> None:
    assert segment.path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    "name",
    [
        "outboard-e1-0000000000000000-1",
        f"{PREFIX}9",
        f"{PREFIX}../../etc/passwd",
        f"../{PREFIX}1",
        f"{PREFIX}1/",
        f"{PREFIX}1\0",
        f"{PREFIX}1\n",
        "/etc/passwd",
        "",
        PREFIX,
        f"{PREFIX}link",
        f"{PREFIX}2",
        f"{PREFIX}3",
        f"{PREFIX}4",
        session_prefix("e1", "s2") + "1",
    ],
)
def test_hostile_names_are_refused(tmp_path: Path, segment: Segment, name: str) -> None:
    (tmp_path / "secret").write_bytes(bytes(4096))
    (tmp_path / f"{PREFIX}2").symlink_to(tmp_path / "secret")
    (tmp_path / f"{PREFIX}3").mkdir()
    (tmp_path / f"{PREFIX}4").touch()
    Segment.create(tmp_path / f"{session_prefix('e1', 's2')}1", 64)
    with pytest.raises(ProtocolError):
        Segments("e1", root=tmp_path).opener("s1")(name, 0, 1)


@pytest.mark.parametrize(
    ("offset", "nbytes"), [(0, 4097), (4096, 1), (-1, 1), (0, -1), (2**62, 1), (64, 4095)]
)
def test_ranges_outside_the_segment_are_refused(
    tmp_path: Path, segment: Segment, offset: int, nbytes: int
) -> None:
    with pytest.raises(ProtocolError, match="4096 bytes"):
        Segments("e1", root=tmp_path).opener("s1")(segment.name, offset, nbytes)


def test_a_reply_goes_into_its_slot_once_and_only_if_it_fits(tmp_path: Path, segment: Segment) -> None:
    segments = Segments("e1", root=tmp_path)
    place = segments.placer("s1", Slot(segment=segment.name, offset=64, nbytes=16))
    assert place(tensor(5)) is None
    assert place(tensor(4)) == Place(segment.name, 64)
    assert bytes(segment.view(64, 16)) == bytes(tensor(4).data)
    assert place(tensor(4)) is None
    assert segments.placer("s1", None)(tensor(1)) is None


def test_a_slot_that_is_no_place_of_the_session_is_refused(tmp_path: Path, segment: Segment) -> None:
    segments = Segments("e1", root=tmp_path)
    for slot in (
        Slot(segment=segment.name, offset=4090, nbytes=4000),
        Slot(segment="outboard-e1-0-1", offset=0, nbytes=64),
    ):
        with pytest.raises(ProtocolError):
            segments.placer("s1", slot)(tensor(4))


def test_old_mappings_are_dropped_but_their_views_stay(tmp_path: Path) -> None:
    owned = [Segment.create(tmp_path / f"{PREFIX}{number}", 64) for number in range(1, 5)]
    segments = Segments("e1", root=tmp_path, keep=2)
    views = [segments.opener("s1")(segment.name, 0, 64) for segment in owned]
    views[0][0] = 9
    assert owned[0].view(0, 1)[0] == 9
    segments.forget("s1")
    views[3][0] = 8
    assert owned[3].view(0, 1)[0] == 8


def test_sweep_removes_a_prefix_and_nothing_else(tmp_path: Path, segment: Segment) -> None:
    other = Segment.create(tmp_path / f"{session_prefix('e1', 's2')}1", 64)
    (tmp_path / f"{PREFIX}notes").touch()
    assert sweep(PREFIX, tmp_path) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([other.name, f"{PREFIX}notes"])
    with pytest.raises(ProtocolError):
        sweep("", tmp_path)


def test_only_segments_of_the_dead_count_as_abandoned(tmp_path: Path, segment: Segment) -> None:
    code = (
        "import os, sys; from pathlib import Path; from outboard.protocol.shm import Segment\n"
        f"Segment.create(Path(sys.argv[1]) / '{PREFIX}7', 64); os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False, timeout=60)
    assert (tmp_path / f"{PREFIX}7").exists()
    assert sweep_abandoned(root=tmp_path) == 1
    assert [path.name for path in tmp_path.iterdir()] == [segment.name]
    segment.unlink()
    assert sweep_abandoned(root=tmp_path) == 0


def test_a_segment_without_room_is_an_error_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int, offset: int, length: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OSError, match="No space"):
        Segment.create(tmp_path / f"{PREFIX}1", 4096)
    assert list(tmp_path.iterdir()) == []


def test_host_identity_is_that_of_the_root(tmp_path: Path) -> None:
    assert host_identity() == host_identity()
    assert host_identity(tmp_path) != host_identity()
