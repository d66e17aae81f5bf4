"""Both transports behave alike: order, ownership, identities, time-outs, and what happens to the absent."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
import zmq

from outboard.protocol.errors import AuthError, EngineLostError, EngineStartError, ProtocolError
from outboard.protocol.inproc import TwinListener
from outboard.protocol.sockets import SocketChannel, SocketListener
from outboard.protocol.transport import Channel, Listener

Listen = Callable[[str], Listener]
Connect = Callable[[Listener], Channel]
Context = zmq.Context[zmq.Socket[bytes]]
Keep = Callable[[Any], Any]


def take(listener: Listener) -> tuple[bytes, list[bytes]]:
    peer, frames = listener.recv(5.0) or pytest.fail("nothing arrived")
    return peer, [bytes(frame) for frame in frames]


def test_messages_keep_their_order_and_their_frames(listen: Listen, connect: Connect) -> None:
    listener = listen("x")
    channel = connect(listener)
    for number in range(50):
        channel.send([b"%d" % number, b"", memoryview(b"abc")])
    for number in range(50):
        assert take(listener)[1] == [b"%d" % number, b"", b"abc"]


def test_replies_reach_the_peer_they_are_for(listen: Listen, connect: Connect) -> None:
    listener = listen("x")
    channels = [connect(listener) for _ in range(3)]
    for number, channel in enumerate(channels):
        channel.send([b"%d" % number])
    for _ in channels:
        peer, frames = take(listener)
        assert listener.send(peer, [b"re", *frames])
    for number, channel in enumerate(channels):
        assert [bytes(frame) for frame in channel.recv(5.0) or []] == [b"re", b"%d" % number]


def test_nothing_within_the_time_is_none(listen: Listen, connect: Connect) -> None:
    listener = listen("x")
    channel = connect(listener)
    begin = monotonic()
    assert channel.recv(0) is None
    assert listener.recv(0) is None
    assert channel.recv(0.05) is None
    assert listener.recv(0.05) is None
    assert 0.08 < monotonic() - begin < 5


def test_the_receiver_owns_what_it_received(listen: Listen, connect: Connect) -> None:
    listener = listen("x")
    channel = connect(listener)
    sent = bytearray(b"x" * 100_000)
    channel.send([b"h", memoryview(sent)])
    _, frames = listener.recv(5.0) or pytest.fail("nothing arrived")
    frames[1][0] = 0
    assert sent[0] == ord("x")
    gc.collect()
    assert frames[1][99_999] == ord("x")


def test_a_poller_sees_waiting_messages(listen: Listen, connect: Connect) -> None:
    listener = listen("x")
    poller = zmq.Poller()
    poller.register(listener.socket, zmq.POLLIN)
    assert not poller.poll(0)
    connect(listener).send([b"x"])
    assert poller.poll(5000)
    take(listener)
    assert not poller.poll(0)


def test_sending_to_nobody_says_so(listen: Listen, connect: Connect) -> None:
    assert listen("x").send(b"stranger", [b"x"]) is False


def test_a_closed_twin_is_gone() -> None:
    listener = TwinListener()
    channel = listener.connect()
    channel.send([b"x"])
    peer, _ = take(listener)
    channel.close()
    assert not listener.send(peer, [b"x"])
    other = listener.connect()
    listener.close()
    assert listener.recv(0) is None
    with pytest.raises(EngineLostError):
        other.send([b"x"])


def test_large_frames_are_sent_and_received_without_copies(
    tmp_path: Path, context: Context, keep: Keep, monkeypatch: pytest.MonkeyPatch
) -> None:
    listener = keep(SocketListener(f"ipc://{tmp_path}/x", context=context))
    channel = keep(SocketChannel(listener.endpoint, context=context))
    copies: list[bool] = []
    original: Any = zmq.Socket.send

    def send(socket: zmq.Socket[bytes], frame: Any, flags: int = 0, copy: bool = True) -> Any:
        copies.append(copy)
        return original(socket, frame, flags, copy)

    monkeypatch.setattr(zmq.Socket, "send", send)
    channel.send([b"h", memoryview(bytearray(1 << 20))])
    _, frames = listener.recv(5.0) or pytest.fail("nothing arrived")
    assert copies == [True, False], "a small frame is copied, a large one is not"
    assert isinstance(frames[1].obj, zmq.Frame)


def test_a_wildcard_port_becomes_a_real_one(context: Context, keep: Keep) -> None:
    listener = keep(SocketListener("tcp://127.0.0.1:*", context=context))
    channel = keep(SocketChannel(listener.endpoint, context=context))
    channel.send([b"x"])
    assert take(listener)[1] == [b"x"]


def test_a_frame_beyond_the_limit_never_arrives(tmp_path: Path, context: Context, keep: Keep) -> None:
    listener = keep(SocketListener(f"ipc://{tmp_path}/x", context=context, max_frame=1000))
    keep(SocketChannel(listener.endpoint, context=context)).send([bytes(2000)])
    assert listener.recv(0.2) is None
    keep(SocketChannel(listener.endpoint, context=context)).send([bytes(900)])
    assert len(take(listener)[1][0]) == 900


def test_a_place_that_is_taken_or_impossible_is_an_error(
    tmp_path: Path, context: Context, keep: Keep
) -> None:
    listener = keep(SocketListener("tcp://127.0.0.1:*", context=context))
    for endpoint in (listener.endpoint, f"ipc://{tmp_path}/none/x", f"ipc://{tmp_path}/{'x' * 200}"):
        with pytest.raises(EngineStartError, match="cannot listen"):
            SocketListener(endpoint, context=context)
    with pytest.raises(ProtocolError):
        keep(SocketListener("nonsense", context=context))


@pytest.mark.parametrize("endpoint", ["tcp://*:0", "tcp://0.0.0.0:*", "tcp://[::]:*", "tcp://eth0:*"])
def test_without_keys_nothing_is_opened_to_other_machines(
    endpoint: str, context: Context, keep: Keep
) -> None:
    with pytest.raises(AuthError, match="without keys"):
        SocketListener(endpoint, context=context)


def test_without_keys_nobody_elsewhere_is_connected_to(context: Context, keep: Keep) -> None:
    with pytest.raises(AuthError, match="without both sides' keys"):
        keep(SocketChannel("tcp://192.0.2.1:5", context=context))
    with pytest.raises(AuthError, match="has no keys"):
        keep(SocketChannel("tcp://127.0.0.1:5", context=context, server_key="x" * 40))


def test_a_closed_socket_is_a_lost_engine(tmp_path: Path, context: Context, keep: Keep) -> None:
    channel = keep(SocketChannel(f"ipc://{tmp_path}/x", context=context))
    channel.close()
    with pytest.raises(EngineLostError):
        channel.recv(1.0)
    with pytest.raises(EngineLostError):
        channel.send([b"x"])
