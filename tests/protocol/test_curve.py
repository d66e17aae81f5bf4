"""Keys: mutual, private, never overwritten; strangers stay outside."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq

from outboard.protocol import curve
from outboard.protocol.curve import Gate, KeyPair
from outboard.protocol.errors import AuthError
from outboard.protocol.sockets import SocketChannel, SocketListener

Context = zmq.Context[zmq.Socket[bytes]]


@pytest.fixture
def server(tmp_path: Path) -> KeyPair:
    return curve.create_keys(tmp_path / "keys", "engine")


@pytest.fixture
def friend(tmp_path: Path) -> KeyPair:
    keys = curve.create_keys(tmp_path / "keys", "friend")
    curve.allow(tmp_path / "keys" / "friend.key", tmp_path / "clients")
    return keys


@pytest.fixture
def gate(tmp_path: Path, context: Context, server: KeyPair, friend: KeyPair) -> Iterator[Gate]:
    gate = Gate(server, tmp_path / "clients", context)
    yield gate
    gate.close()


def test_a_known_client_comes_in_and_is_answered(gate: Gate, server: KeyPair, friend: KeyPair) -> None:
    listener = SocketListener("tcp://127.0.0.1:*", gate=gate)
    channel = SocketChannel(listener.endpoint, keys=friend, server_key=server.public)
    channel.send([b"hello"])
    peer, frames = listener.recv(10.0) or pytest.fail("nothing arrived")
    assert bytes(frames[0]) == b"hello"
    assert listener.send(peer, [b"welcome"])
    assert [bytes(frame) for frame in channel.recv(10.0) or []] == [b"welcome"]
    channel.close()
    listener.close()


def test_strangers_stay_outside(tmp_path: Path, gate: Gate, server: KeyPair, friend: KeyPair) -> None:
    listener = SocketListener("tcp://127.0.0.1:*", gate=gate)
    stranger = curve.create_keys(tmp_path / "elsewhere", "stranger")
    channels = [
        SocketChannel(listener.endpoint),
        SocketChannel(listener.endpoint, keys=stranger, server_key=server.public),
        SocketChannel(listener.endpoint, keys=friend, server_key=stranger.public),
    ]
    for channel in channels:
        channel.send([b"let me in"])
    assert listener.recv(0.7) is None
    for channel in channels:
        channel.close()
    listener.close()


def test_a_client_let_in_later_comes_in(tmp_path: Path, gate: Gate, server: KeyPair) -> None:
    listener = SocketListener("tcp://127.0.0.1:*", gate=gate)
    late = curve.create_keys(tmp_path / "elsewhere", "late")
    curve.allow(tmp_path / "elsewhere" / "late.key", tmp_path / "clients")
    gate.reload()
    channel = SocketChannel(listener.endpoint, keys=late, server_key=server.public)
    channel.send([b"hello"])
    assert listener.recv(10.0)
    channel.close()
    listener.close()


def test_a_guarded_listener_may_open_outward(gate: Gate) -> None:
    listener = SocketListener("tcp://0.0.0.0:*", gate=gate)
    assert listener.endpoint.startswith("tcp://0.0.0.0:")
    listener.close()


def test_a_gate_guards_its_own_context_only(gate: Gate) -> None:
    with pytest.raises(AuthError, match="context"):
        SocketListener("tcp://127.0.0.1:*", gate=gate, context=zmq.Context.instance())


def test_secret_keys_are_private_and_never_overwritten(tmp_path: Path, server: KeyPair) -> None:
    secret = tmp_path / "keys" / "engine.key_secret"
    assert secret.stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "keys").stat().st_mode & 0o777 == 0o700
    assert server.secret not in repr(server)
    assert server.secret not in (tmp_path / "keys" / "engine.key").read_text()
    with pytest.raises(AuthError, match="exists already"):
        curve.create_keys(tmp_path / "keys", "engine")
    assert curve.load_keys(secret) == server
    secret.chmod(0o644)
    with pytest.raises(AuthError, match="other users"):
        curve.load_keys(secret)


def test_letting_somebody_in_copies_the_public_key_only(tmp_path: Path, friend: KeyPair) -> None:
    copy = curve.allow(tmp_path / "keys" / "friend.key_secret", tmp_path / "others")
    assert friend.public in copy.read_text()
    assert friend.secret not in copy.read_text()


def test_what_is_no_key_file_is_refused(tmp_path: Path, server: KeyPair) -> None:
    (tmp_path / "x.key").write_text("hello")
    for path in (tmp_path / "none.key", tmp_path / "x.key"):
        with pytest.raises(AuthError, match="no readable key file"):
            curve.load_public(path)
    with pytest.raises(AuthError, match="no secret key"):
        curve.load_keys(tmp_path / "keys" / "engine.key")
