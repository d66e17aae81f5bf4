"""Both transports, so that every test of the wire runs on each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
import zmq

from outboard.protocol.client import Client
from outboard.protocol.inproc import TwinListener
from outboard.protocol.sockets import SocketChannel, SocketListener
from outboard.protocol.transport import Channel, Listener
from wire_engine import ScriptedEngine, Session

Connect = Callable[[Listener], Channel]
Keep = Callable[[Any], Any]


@pytest.fixture
def context() -> Iterator[zmq.Context[zmq.Socket[bytes]]]:
    """A ZeroMQ context of the test's own."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    yield context
    context.destroy(linger=0)


@pytest.fixture
def keep() -> Iterator[Keep]:
    """Closes at the test's end what is given to it."""
    with ExitStack() as stack:
        yield lambda end: stack.enter_context(closing(end))


@pytest.fixture(params=["twin", "ipc"])
def listen(
    request: pytest.FixtureRequest, tmp_path: Path, context: zmq.Context[zmq.Socket[bytes]], keep: Keep
) -> Callable[[str], Listener]:
    """Opens a listener of a given name."""
    if request.param == "twin":
        return lambda name: keep(TwinListener(name))
    return lambda name: keep(SocketListener(f"ipc://{tmp_path}/{name}", context=context))


@pytest.fixture
def connect(context: zmq.Context[zmq.Socket[bytes]], keep: Keep) -> Connect:
    """Opens a channel to a listener."""

    def connect(listener: Listener) -> Channel:
        if isinstance(listener, TwinListener):
            channel: Channel = listener.connect()
        else:
            channel = SocketChannel(listener.endpoint, context=context)
        keep(channel)
        return channel

    return connect


@pytest.fixture
def session(listen: Callable[[str], Listener], connect: Connect) -> Session:
    """Opens a session with an engine that a test scripts."""

    @contextmanager
    def session(
        options: dict[str, Any] | None = None, **script: Any
    ) -> Iterator[tuple[Client, ScriptedEngine]]:
        with ExitStack() as stack:
            engine = stack.enter_context(ScriptedEngine(listen("work"), listen("control"), **script))
            client = Client.over(
                connect(engine.work), connect(engine.control), client="tests", **(options or {})
            )
            stack.callback(client.close)
            yield client, engine

    return session
