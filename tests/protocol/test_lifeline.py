"""The control channel works beside the work, and tells when the engine is lost and when it is only busy."""

from __future__ import annotations

from threading import Event, Thread
from time import monotonic, sleep

import pytest

from outboard.protocol.errors import (
    EngineLostError,
)
from outboard.protocol.messages.client import CloseRun, Load
from outboard.protocol.messages.control import Ping, Pong, Status
from wire_engine import (
    InterruptError,
    Session,
    answer,
    segments,
)
from wire_samples import MODEL


def test_control_is_answered_while_a_request_waits(session: Session) -> None:
    with session(handlers={"load": answer()}) as (client, _):
        over = Event()

        def poll() -> None:
            if over.is_set():
                raise InterruptError

        def work() -> None:
            with pytest.raises(InterruptError):
                client.request(Load(model=MODEL), poll=poll)

        thread = Thread(target=work)
        thread.start()
        try:
            for _ in range(5):
                assert client.control(Ping()) == Pong()
        finally:
            over.set()
            thread.join(10)
        assert not thread.is_alive()


def test_a_silent_engine_is_lost_in_time(session: Session) -> None:
    with session({"silence": 0.5}, handlers={"load": answer()}) as (client, server):
        begin = monotonic()
        with pytest.raises(EngineLostError, match="silent"):
            client.request(Load(model=MODEL), poll=server.silent.set)
        assert 0.5 < monotonic() - begin < 5
        assert segments() == []
        assert "silent" in client.ended
        with pytest.raises(EngineLostError, match="session has ended"):
            client.request(CloseRun(run="r"))
        with pytest.raises(EngineLostError, match="session has ended"):
            client.control(Ping())


def test_an_engine_that_computes_for_long_is_not_lost(session: Session) -> None:
    with session({"silence": 0.3}, handlers={"load": answer()}) as (client, _):
        end = monotonic() + 2.5

        def poll() -> None:
            if monotonic() > end:
                raise InterruptError

        with pytest.raises(InterruptError):
            client.request(Load(model=MODEL), poll=poll)
        assert not client.ended


def test_a_poll_that_blocks_does_not_lose_the_engine(session: Session) -> None:
    naps = iter([0.0] * 150 + [1.0])

    def poll() -> None:
        nap = next(naps, None)
        if nap is None:
            raise InterruptError
        sleep(nap)

    with session({"silence": 0.3}, handlers={"load": answer()}) as (client, _), pytest.raises(InterruptError):
        client.request(Load(model=MODEL), poll=poll)


def test_an_engine_whose_process_ended_is_lost_at_once(session: Session) -> None:
    alive = Event()
    alive.set()
    with session({"alive": alive.is_set}, handlers={"load": answer()}) as (client, _):
        begin = monotonic()
        with pytest.raises(EngineLostError, match="process has ended"):
            client.request(Load(model=MODEL), poll=alive.clear)
        assert monotonic() - begin < 2


def test_a_control_channel_without_answer_is_a_lost_engine(session: Session) -> None:
    with (
        session(handlers={"status": answer()}) as (client, _),
        pytest.raises(EngineLostError, match="control channel"),
    ):
        client.control(Status(), timeout=0.1)
