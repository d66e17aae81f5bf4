"""The supervisor's parts: fairness, exactly one end, the catalog, endpoints."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

import harness
from outboard.engine.demo.assets import MODEL
from outboard.engine.link import CancelTask, Task, pack, unpack
from outboard.engine.supervisor.catalog import Catalog
from outboard.engine.supervisor.endpoints import local_endpoints, outward_endpoints
from outboard.engine.supervisor.queue import FairQueue
from outboard.engine.supervisor.requests import OpenRequests, Request
from outboard.protocol.codec import decode
from outboard.protocol.errors import (
    CancelledError,
    CheckpointError,
    EngineLostError,
    InvalidRequestError,
    ModelNotFoundError,
    ProtocolError,
)
from outboard.protocol.messages.engine import Error
from outboard.protocol.transport import Frame


def request(session: str, ident: str, sent: list[Sequence[Frame]] | None = None) -> Request:
    heard = [] if sent is None else sent
    return Request(session, ident, "run", (), heard.append)


def names(queue: FairQueue) -> list[str]:
    found = []
    while (waiting := queue.pop()) is not None:
        found.append(waiting.key)
    return found


def test_each_session_gets_one_request_through_in_turn() -> None:
    queue = FairQueue()
    for session, ident in (("a", "1"), ("a", "2"), ("a", "3"), ("b", "1"), ("c", "1"), ("b", "2")):
        queue.push(request(session, ident))
    queue.push(request("c", "now"), urgent=True)
    foreseen = [waiting.key for waiting in queue.order()]
    assert foreseen == ["c/now", "a/1", "b/1", "c/1", "a/2", "b/2", "a/3"]
    assert len(queue) == 7
    assert names(queue) == foreseen
    assert len(queue) == 0


def test_a_removed_request_does_not_run() -> None:
    queue = FairQueue()
    waiting = [request("a", "1"), request("a", "2"), request("b", "1")]
    for entry in waiting:
        queue.push(entry)
    queue.remove(waiting[0])
    queue.remove(waiting[2])
    queue.remove(waiting[2])
    assert names(queue) == ["a/2"]


def test_a_second_end_is_dropped_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    table, sent = OpenRequests(), list[Sequence[Frame]]()
    entry = request("a", "1", sent)
    assert table.add(entry)
    table.fail(entry, EngineLostError("gone"))
    with caplog.at_level(logging.ERROR):
        table.fail(entry, CancelledError("late"))
    assert "second terminal" in caplog.text
    ends = [decode(frames).message for frames in sent]
    assert [end.code for end in ends if isinstance(end, Error)] == ["engine_lost"]


def test_an_id_that_is_open_cannot_be_opened_twice() -> None:
    table = OpenRequests()
    assert table.add(request("a", "1"))
    assert not table.add(request("a", "1"))
    assert table.add(request("b", "1"))
    assert len(table) == 2


def test_records_between_supervisor_and_rank_come_back_as_they_were() -> None:
    task = Task("s/1", "s", "1", "run", "/models/a.safetensors", 0.5)
    assert unpack(pack(task, [b"head", b"tensor"])) == (task, [b"head", b"tensor"])
    assert unpack(pack(CancelTask("s/1"))) == (CancelTask("s/1"), [])
    for damaged in (b"", b"\xc1", b"\x01", bytes(pack(task)[0]).replace(b"task", b"tusk")):
        with pytest.raises(ProtocolError):
            unpack([damaged])


def test_the_catalog_searches_every_root_and_follows_the_owners_symlinks(tmp_path: Path) -> None:
    first, second, elsewhere = tmp_path / "first", tmp_path / "second", tmp_path / "elsewhere"
    for folder in (first, second / "flux", elsewhere):
        folder.mkdir(parents=True)
    shutil.copy(MODEL, elsewhere / "kept.safetensors")
    (second / "flux" / "linked.safetensors").symlink_to(elsewhere / "kept.safetensors")
    catalog = Catalog({"diffusion_models": (first, second)})
    wanted = harness.ref(second / "flux" / "linked.safetensors", second)
    assert catalog.find(wanted) == second / "flux" / "linked.safetensors"
    (first / "flux").mkdir()
    (first / "flux" / "linked.safetensors").write_bytes(MODEL.read_bytes() + b"more")
    assert catalog.find(wanted) == second / "flux" / "linked.safetensors"
    with pytest.raises(ModelNotFoundError, match=str(first)):
        catalog.find(wanted.model_copy(update={"name": "kept.safetensors"}))


def test_the_catalog_never_leaves_its_roots(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    shutil.copy(MODEL, tmp_path / "outside.safetensors")
    catalog = Catalog({"diffusion_models": (root,)})
    wanted = harness.ref(tmp_path / "outside.safetensors", tmp_path)
    for name in (
        "../outside.safetensors",
        "a/../../outside.safetensors",
        str(tmp_path / "outside.safetensors"),
    ):
        # The record refuses such a name; this is the second lock.
        with pytest.raises(ModelNotFoundError):
            catalog.find(wanted.model_copy(update={"name": name}))


def test_a_file_replaced_under_the_engine_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    shutil.copy(MODEL, path)
    catalog, wanted = Catalog({"diffusion_models": (tmp_path,)}), harness.ref(path, tmp_path)
    assert catalog.find(wanted) == path
    damaged = bytearray(MODEL.read_bytes())
    damaged[20] ^= 1
    path.write_bytes(damaged)
    with pytest.raises(CheckpointError):
        catalog.find(wanted)


def test_sockets_lie_in_the_folder_unless_its_path_is_too_long(tmp_path: Path) -> None:
    near = local_endpoints(Path("/run/o"), "e")
    assert near.work == "ipc:///run/o/e.work.sock"
    assert len(near.files) == 3
    far = local_endpoints(Path("/run") / ("x" * 100), "e")
    assert {far.work, far.control, far.ranks} == {"tcp://127.0.0.1:*"}
    assert far.files == ()


def test_an_outward_address_takes_two_ports() -> None:
    assert outward_endpoints("tcp://0.0.0.0:7790") == ("tcp://0.0.0.0:7790", "tcp://0.0.0.0:7791")
    for wrong in ("7790", "tcp://host", "tcp://host:0", "tcp://host:65535", "ipc:///x:1"):
        with pytest.raises(InvalidRequestError):
            outward_endpoints(wrong)
