"""An engine that other machines reach: keys on both sides, or nothing at all; and the commands around it."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest

import harness
from outboard.engine import cli
from outboard.engine.launch import local_token
from outboard.protocol.address import Address
from outboard.protocol.client import Client
from outboard.protocol.curve import create_keys, load_keys, load_public
from outboard.protocol.errors import AuthError, EngineLostError
from outboard.protocol.messages.engine import Result


def free_port() -> int:
    """A port whose successor is free as well."""
    while True:
        with socket.socket() as first, socket.socket() as second:
            first.bind(("127.0.0.1", 0))
            port = int(first.getsockname()[1])
            try:
                second.bind(("127.0.0.1", port + 1))
            except OSError:
                continue
            return port


def test_only_a_client_with_an_admitted_key_gets_in(runtime: Path, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    assert cli.main(["keys", "--dir", str(keys)]) == 0
    port = free_port()
    engine = harness.start(f"--bind=tcp://127.0.0.1:{port}", f"--keys={keys}")
    address = Address(
        f"tcp://127.0.0.1:{port}",
        f"tcp://127.0.0.1:{port + 1}",
        server_key=load_public(keys / "server.key"),
    )
    client = Client.connect(
        address, client="far", timeout=harness.READY, keys=load_keys(keys / "client.key_secret")
    )
    assert isinstance(client.request(harness.run(1)), Result)
    client.close()
    stranger = create_keys(tmp_path / "other", "stranger")
    with pytest.raises(EngineLostError):
        Client.connect(address, client="stranger", timeout=1.0, keys=stranger)
    near = harness.connect(engine)
    near.close()
    engine.stop()


def test_loopback_without_keys_needs_this_users_token(runtime: Path) -> None:
    port = free_port()
    endpoint, control = f"tcp://127.0.0.1:{port}", f"tcp://127.0.0.1:{port + 1}"
    engine = harness.start(f"--bind={endpoint}")
    with pytest.raises(AuthError):
        Client.connect(Address(endpoint, control), client="stranger", timeout=5.0)
    token = local_token(endpoint)
    assert token
    client = Client.connect(Address(endpoint, control, token), client="mine", timeout=harness.READY)
    client.close()
    assert local_token("tcp://127.0.0.1:1") == ""
    engine.stop()


def test_status_and_stop_find_the_engine(runtime: Path, capsys: pytest.CaptureFixture[str]) -> None:
    engine = harness.start()
    assert cli.main(["status", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["engine"], report["life"], report["ranks"][0]["state"]) == (engine.id, "shared", "ready")
    assert cli.main(["status"]) == 0
    assert engine.id in capsys.readouterr().out
    assert cli.main(["serve", "--stop"]) == 0
    assert engine.process is not None and engine.process.wait(10) == 0
    assert cli.main(["status"]) == 1
    assert cli.main(["serve", "--stop"]) == 1


def test_an_engine_in_a_folder_with_a_long_path_uses_loopback(
    runtime: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OUTBOARD_RUNTIME_DIR", str(runtime / ("long" * 30)))
    engine = harness.start()
    assert engine.address.work.startswith("tcp://127.0.0.1:")
    client = harness.connect(engine)
    assert isinstance(client.request(harness.run(1)), Result)
    client.close()
    engine.stop()
