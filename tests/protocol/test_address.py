"""Which endpoints other machines can reach."""

from __future__ import annotations

import pytest

from outboard.protocol.address import Address, check_endpoint, is_loopback
from outboard.protocol.errors import ProtocolError


@pytest.mark.parametrize(
    "endpoint",
    ["ipc:///run/x/work", "tcp://127.0.0.1:5", "tcp://127.9.9.9:*", "tcp://localhost:5", "tcp://[::1]:5"],
)
def test_these_stay_on_the_machine(endpoint: str) -> None:
    assert is_loopback(endpoint)


@pytest.mark.parametrize(
    "endpoint",
    [
        "tcp://*:5",
        "tcp://0.0.0.0:5",
        "tcp://[::]:5",
        "tcp://10.0.0.1:5",
        "tcp://eth0:5",
        "tcp://lo:5",
        "tcp://127.0.0.1.evil.example:5",
        "tcp://localhost.evil.example:5",
        "tcp://0x7f.1:5",
        "tcp://box:5",
    ],
)
def test_these_may_leave_it(endpoint: str) -> None:
    assert not is_loopback(endpoint)


@pytest.mark.parametrize(
    "endpoint",
    ["", "tcp://", "tcp://127.0.0.1", "udp://127.0.0.1:5", "tcp://10.0.0.1:0;127.0.0.1:5", "ipc://"],
)
def test_these_are_no_endpoints(endpoint: str) -> None:
    with pytest.raises(ProtocolError, match="no endpoint"):
        check_endpoint(endpoint)


def test_the_token_does_not_show() -> None:
    assert "hush" not in repr(Address("ipc://w", "ipc://c", token="hush"))
