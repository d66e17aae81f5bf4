"""Requests on the work channel: events, polling, cancellation, turns, and the memory they use."""

from __future__ import annotations

from threading import Event, Thread
from time import monotonic, sleep

import pytest

from outboard.protocol.codec import Envelope, encode
from outboard.protocol.errors import (
    EngineLostError,
)
from outboard.protocol.failure import to_message
from outboard.protocol.messages import Message, engine
from outboard.protocol.messages.client import CloseRun, Load
from outboard.protocol.messages.control import CancelReply
from outboard.protocol.messages.engine import Closed, Prediction, Progress
from outboard.protocol.values import WireTensor
from wire_engine import (
    LARGE,
    SESSION,
    InterruptError,
    Session,
    answer,
    predict,
    segments,
    stop,
)
from wire_samples import MODEL, same, tensor


def test_segments_are_used_again_and_are_gone_at_the_end(session: Session) -> None:
    with session() as (client, _):
        for _ in range(10):
            reply = client.request(predict(tensor(LARGE), client.reply_slot(4 * LARGE)))
            del reply
        assert len(segments()) == 2
    assert segments() == []


def test_a_reply_is_not_overwritten_while_it_is_held(session: Session) -> None:
    with session() as (client, _):
        first = client.request(predict(tensor(LARGE), client.reply_slot(4 * LARGE)))
        assert isinstance(first, Prediction)
        before = bytes(first.v.data)
        zeros = WireTensor("float32", (LARGE,), memoryview(bytearray(4 * LARGE)))
        client.request(predict(zeros, client.reply_slot(4 * LARGE)))
        assert bytes(first.v.data) == before


def test_an_unused_slot_is_free_again(session: Session) -> None:
    with session() as (client, _):
        slot = client.reply_slot(16)
        client.request(predict(tensor(100), slot))
        assert slot is not None
        assert client.reply_slot(16) == slot


def test_poll_is_called_at_least_every_20_ms_while_waiting(session: Session) -> None:
    def slow(_: Message) -> list[Message]:
        sleep(0.5)
        return [Closed()]

    times: list[float] = []
    with session(handlers={"close_run": slow}) as (client, _):
        client.request(CloseRun(run="r"), poll=lambda: times.append(monotonic()))
    assert len(times) >= 20


def test_an_exception_in_poll_cancels_at_the_engine_and_comes_back(session: Session) -> None:
    with session(handlers={"load": answer()}) as (client, server):
        with pytest.raises(InterruptError):
            client.request(Load(model=MODEL), poll=stop)
        assert [message.type for message in server.seen] == ["hello", "load", "cancel"]
        assert client.request(CloseRun(run="r")) == Closed()


def test_an_exception_in_on_event_cancels_too(session: Session) -> None:
    with session(handlers={"load": answer(Progress(phase="queued"))}) as (client, server):
        with pytest.raises(InterruptError):
            client.request(Load(model=MODEL), on_event=lambda _: stop())
        assert "cancel" in server.types()
        assert client.request(CloseRun(run="r")) == Closed()


def test_a_cancelled_request_that_does_not_end_is_given_up_and_its_late_reply_dropped(
    session: Session,
) -> None:
    ignore = {"load": answer(), "cancel": answer(CancelReply(found=True))}
    with session({"patience": 0.2}, handlers=ignore) as (client, server):
        with pytest.raises(InterruptError):
            client.request(Load(model=MODEL), poll=stop)
        (ident, peer), *_ = server.open.items()
        late = engine.Loaded(family="late", dtype="", nbytes=0, seconds=0.0)
        server.work.send(peer, encode(Envelope(late, ident, SESSION)))
        assert client.request(CloseRun(run="r")) == Closed()


def test_segments_of_a_request_that_was_given_up_are_not_used_again(session: Session) -> None:
    ignore = {"predict": answer(), "cancel": answer(CancelReply(found=True))}
    with session({"patience": 0.1}, handlers=ignore) as (client, _):
        with pytest.raises(InterruptError):
            client.request(predict(tensor(LARGE), client.reply_slot(64)), poll=stop)
        assert segments() == []


def test_requests_from_several_threads_take_turns(session: Session) -> None:
    with session() as (client, _):
        results: dict[int, bool] = {}

        def work(number: int) -> None:
            x = WireTensor("uint8", (LARGE,), memoryview(bytearray([number]) * LARGE))
            for _ in range(5):
                reply = client.request(predict(x, client.reply_slot(LARGE)))
                assert isinstance(reply, Prediction)
                results[number] = results.get(number, True) and same(reply.v, x)

        threads = [Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert results == dict.fromkeys(range(4), True)


def test_a_thread_that_waits_for_its_turn_can_be_stopped(session: Session) -> None:
    with session(handlers={"load": answer()}) as (client, server):
        over = Event()

        def poll() -> None:
            if over.is_set():
                raise InterruptError

        def work() -> None:
            with pytest.raises(InterruptError):
                client.request(Load(model=MODEL), poll=poll)

        first = Thread(target=work)
        first.start()
        while "load" not in server.types():
            sleep(0.01)
        with pytest.raises(InterruptError):
            client.request(CloseRun(run="r"), poll=stop)
        over.set()
        first.join(10)
        assert "close_run" not in server.types()


def test_closing_ends_a_request_in_another_thread(session: Session) -> None:
    with session(handlers={"load": answer()}) as (client, server):
        failures: list[EngineLostError] = []

        def work() -> None:
            with pytest.raises(EngineLostError) as caught:
                client.request(Load(model=MODEL))
            failures.append(caught.value)

        thread = Thread(target=work)
        thread.start()
        while "load" not in server.types():
            sleep(0.01)
        client.close()
        thread.join(20)
        assert len(failures) == 1


def test_closing_says_bye(session: Session) -> None:
    with session() as (client, server):
        client.close()
        client.close()
        end = monotonic() + 5
        while server.types()[-1] != "bye" and monotonic() < end:
            sleep(0.01)
        assert server.types() == ["hello", "bye"]


def test_a_request_lost_with_its_rank_leaves_the_session_open(session: Session) -> None:
    lost = to_message(EngineLostError("rank 0 died"))
    with session(handlers={"load": answer(lost)}) as (client, _):
        with pytest.raises(EngineLostError, match="rank 0"):
            client.request(Load(model=MODEL))
        assert client.request(CloseRun(run="r")) == Closed()
