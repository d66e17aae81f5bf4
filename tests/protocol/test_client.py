"""A session, from hello to bye: replies, errors, blobs, shared memory and connecting."""

from __future__ import annotations

from pathlib import Path
from threading import Thread
from time import monotonic, sleep

import pytest
import zmq

from outboard.protocol.address import Address
from outboard.protocol.client import Client
from outboard.protocol.errors import (
    AuthError,
    CheckpointError,
    EngineLostError,
    InvalidRequestError,
    MissingBlobError,
    VersionError,
)
from outboard.protocol.failure import to_message
from outboard.protocol.messages import Message, engine
from outboard.protocol.messages.client import CloseRun, Load
from outboard.protocol.messages.control import Cancel
from outboard.protocol.messages.engine import Closed, Prediction, Progress
from outboard.protocol.sockets import SocketListener
from outboard.protocol.values import Blob
from wire_engine import (
    LARGE,
    SESSION,
    ScriptedEngine,
    Session,
    answer,
    predict,
    segments,
)
from wire_samples import MODEL, same, tensor


def test_a_request_ends_in_its_reply_after_its_events(session: Session) -> None:
    events = [Progress(phase="loading", done=n, total=3) for n in range(3)]
    loaded = engine.Loaded(family="flux", dtype="bfloat16", nbytes=1, seconds=0.0)
    with session(handlers={"load": answer(*events, loaded)}) as (client, _):
        seen: list[Message] = []
        assert client.request(Load(model=MODEL), on_event=seen.append) == loaded
        assert seen == events
        assert client.request(Load(model=MODEL)) == loaded


def test_an_error_reply_is_raised_as_its_class(session: Session) -> None:
    error = to_message(CheckpointError("the file is damaged", hint="Fetch it again."))
    with session(handlers={"load": answer(error)}) as (client, _):
        with pytest.raises(CheckpointError, match="damaged") as caught:
            client.request(Load(model=MODEL))
        assert caught.value.hint == "Fetch it again."
        assert client.request(CloseRun(run="r")) == Closed()


@pytest.mark.parametrize("shared_memory", [True, False])
@pytest.mark.parametrize("length", [10, LARGE])
def test_tensors_arrive_by_frame_and_by_shared_memory(
    session: Session, shared_memory: bool, length: int
) -> None:
    with session(shared_memory=shared_memory) as (client, _):
        x = tensor(length)
        slot = client.reply_slot(x.nbytes)
        assert (slot is not None) == shared_memory
        reply = client.request(predict(x, slot))
        assert isinstance(reply, Prediction)
        assert same(reply.v, x)
    assert segments() == []


def test_interned_tensors_are_sent_once(session: Session) -> None:
    with session() as (client, server):
        tree = {"context": tensor(LARGE), "small": tensor(2), "scale": 1.5, "again": [tensor(LARGE)]}
        packed = client.intern(tree)
        assert isinstance(packed["context"], Blob)
        assert packed["again"] == [packed["context"]]
        assert packed["small"] is tree["small"]
        assert client.intern(tree) == packed
        assert server.types().count("put_blob") == 1
        assert list(server.blobs) == [packed["context"].digest]


def test_blobs_the_engine_forgot_are_sent_again(session: Session) -> None:
    with session() as (client, server):
        packed = client.intern(
            {"a": tensor(LARGE), "b": tensor(LARGE, dtype="uint8"), "c": tensor(LARGE // 2)}
        )
        del server.blobs[packed["a"].digest], server.blobs[packed["c"].digest]
        slot = client.reply_slot(400)
        reply = client.request(predict(tensor(100), slot, **packed))
        assert isinstance(reply, Prediction)
        assert same(reply.v, tensor(100))
        assert server.types().count("put_blob") == 5
        assert server.types().count("predict") == 2


def test_blobs_nobody_has_are_an_error(session: Session) -> None:
    with session() as (client, server):
        with pytest.raises(MissingBlobError):
            client.request(predict(tensor(1), a=Blob("0" * 32)))
        packed = client.intern(tensor(LARGE))
        server.handlers = {
            "predict": answer(to_message(MissingBlobError("never", details={"digests": packed.digest})))
        }
        with pytest.raises(MissingBlobError):
            client.request(predict(tensor(1), a=packed))
        assert server.types().count("predict") == 4


def test_interned_memory_keeps_to_its_budget(session: Session) -> None:
    with session({"blob_memory": 5 * LARGE}) as (client, server):
        first = tensor(LARGE)
        client.intern(first)
        client.intern(tensor(LARGE, dtype="int32"))
        client.intern(first)
        assert server.types().count("put_blob") == 3


def test_messages_go_on_their_own_channel_only(session: Session) -> None:
    with session() as (client, _):
        with pytest.raises(InvalidRequestError):
            client.request(Cancel(request="r1"))
        with pytest.raises(InvalidRequestError):
            client.control(Load(model=MODEL))


@pytest.mark.parametrize("error", [AuthError("wrong token"), VersionError("too old")])
def test_a_refused_hello_is_raised(session: Session, error: AuthError | VersionError) -> None:
    with pytest.raises(type(error)), session(handlers={"hello": answer(to_message(error))}):
        pytest.fail("the session opened")


def test_nobody_there_is_a_lost_engine(tmp_path: Path) -> None:
    address = Address(f"ipc://{tmp_path}/w", f"ipc://{tmp_path}/c")
    begin = monotonic()
    with pytest.raises(EngineLostError, match="no engine answered"):
        Client.connect(address, client="tests", timeout=0.2)
    with pytest.raises(EngineLostError):
        Client.connect(address, client="tests", timeout=60, alive=lambda: False)
    assert monotonic() - begin < 10


def test_connect_waits_for_an_engine_that_comes_up(
    tmp_path: Path, context: zmq.Context[zmq.Socket[bytes]]
) -> None:
    engines: list[ScriptedEngine] = []

    def start() -> None:
        sleep(0.3)
        work, control = (SocketListener(f"ipc://{tmp_path}/{name}", context=context) for name in "wc")
        engines.append(ScriptedEngine(work, control).__enter__())

    thread = Thread(target=start)
    thread.start()
    client = Client.connect(Address(f"ipc://{tmp_path}/w", f"ipc://{tmp_path}/c"), client="tests", timeout=20)
    assert client.welcome.session == SESSION
    client.close()
    thread.join()
    engines[0].__exit__(None, None, None)
