"""Taking requests back: queued, loading, sampling; and what the others notice of it."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

import harness
from models.files import TINY, describe, flux1_shapes, write
from outboard.engine.launch import Engine
from outboard.protocol.client import Client
from outboard.protocol.errors import CancelledError
from outboard.protocol.messages import Message
from outboard.protocol.messages.client import Load, Run
from outboard.protocol.messages.control import Cancel, CancelReply
from outboard.protocol.messages.engine import Progress, Result, Step

LONG = 4000
WIDE = TINY | {"num_layers": 4, "num_single_layers": 4, "num_attention_heads": 8}


class Interrupt(Exception):  # noqa: N818 - the word ComfyUI uses
    """What the user's red button raises in these tests."""


def raise_when(flag: threading.Event) -> Callable[[], None]:
    def poll() -> None:
        if flag.is_set():
            raise Interrupt

    return poll


class Background:
    """A request in a thread of its own, up to its outcome."""

    def __init__(self, client: Client, message: Message) -> None:
        self.began, self.stop = threading.Event(), threading.Event()
        self.outcome: Message | BaseException | None = None
        self.events: list[Message] = []
        self._thread = threading.Thread(target=self._ask, args=(client, message))
        self._thread.start()

    def _ask(self, client: Client, message: Message) -> None:
        try:
            self.outcome = client.request(message, on_event=self._hear, poll=raise_when(self.stop))
        except (Interrupt, CancelledError) as error:
            self.outcome = error

    def _hear(self, event: Message) -> None:
        self.events.append(event)
        if isinstance(event, Step):
            self.began.set()

    def end(self) -> Message | BaseException | None:
        self.stop.set()
        self._thread.join(30)
        assert not self._thread.is_alive()
        return self.outcome


def test_a_cancel_at_step_2_of_20_is_over_within_one_step(client: Client) -> None:
    seen: list[int] = []

    def stop_at_two(event: Message) -> None:
        if isinstance(event, Step):
            seen.append(event.index)
            if event.index == 1:
                raise Interrupt

    client.request(harness.run(1))
    began = time.monotonic()
    client.request(harness.run(20))
    one_step = (time.monotonic() - began) / 20
    began = time.monotonic()
    with pytest.raises(Interrupt):
        client.request(harness.run(20), on_event=stop_at_two)
    assert time.monotonic() - began < 2 * one_step + 5 * one_step
    assert seen[-1] <= 3
    assert isinstance(client.request(harness.run(2)), Result)


def test_a_queued_request_is_cancelled_at_once_and_never_runs(client: Client, other: Client) -> None:
    running = Background(client, harness.run(LONG))
    assert running.began.wait(60)
    queued: list[Message] = []
    began = time.monotonic()

    def stop_when_queued(event: Message) -> None:
        queued.append(event)
        raise Interrupt

    with pytest.raises(Interrupt):
        other.request(harness.run(4), on_event=stop_when_queued)
    assert time.monotonic() - began < 2.0
    assert [event.type for event in queued] == [Progress.type]
    assert harness.status(other).running == Run.type
    assert isinstance(running.end(), Interrupt)
    assert isinstance(other.request(harness.run(2)), Result)


def test_a_cancel_during_loading_ends_the_load(runtime: Path, tmp_path: Path) -> None:
    path = write(tmp_path / "wide.safetensors", describe(flux1_shapes(WIDE)))
    engine = harness.start(roots={"diffusion_models": (tmp_path,)})
    client = harness.connect(engine)
    progress: list[Progress] = []

    def stop_when_loading(event: Message) -> None:
        assert isinstance(event, Progress)
        progress.append(event)
        raise Interrupt

    with pytest.raises(Interrupt):
        client.request(Load(model=harness.ref(path, tmp_path)), on_event=stop_when_loading)
    assert progress[0].phase == "loading"
    assert progress[0].done < progress[0].total
    harness.wait_until(lambda: harness.status(client).running == "", 5, "the load ends")
    assert harness.status(client).models == []
    client.close()
    engine.stop()


def test_the_steps_of_two_users_interleave(client: Client, other: Client) -> None:
    client.request(harness.predict("warm"))
    order: list[str] = []

    def loop(who: str, mine: Client) -> None:
        for step in range(6):
            mine.request(harness.predict(f"run-{who}", 1 - step / 6))
            order.append(who)

    threads = [threading.Thread(target=loop, args=pair) for pair in (("a", client), ("b", other))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    switches = sum(first != second for first, second in pairwise(order))
    assert len(order) == 12
    assert switches >= 4, order


def test_a_client_killed_while_it_samples_leaves_no_work_and_no_memory_behind(
    engine: Engine, client: Client
) -> None:
    script = f"""
import sys, harness
from outboard.engine.launch import Engine
from outboard.protocol.address import Address
mine = harness.connect(Engine("", Address(*sys.argv[1:4])))
long = harness.run({LONG}, reply=mine.reply_slot(4096))
mine.request(long, on_event=lambda event: print(event.type, flush=True))
"""
    address = [engine.address.work, engine.address.control, engine.address.token]
    env = {**os.environ, "PYTHONPATH": str(Path(harness.__file__).parent)}
    command = [sys.executable, "-c", script, *address]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env) as victim:
        assert victim.stdout is not None
        while victim.stdout.readline() != "step\n":
            continue
        assert harness.status(client).sessions == 2
        assert harness.segments(engine.id)
        victim.kill()
    harness.wait_until(lambda: harness.status(client).running == "", 5, "the run is cancelled")
    assert harness.status(client).sessions == 1
    assert not harness.segments(engine.id)


def test_a_cancel_of_what_has_ended_finds_nothing(client: Client) -> None:
    client.request(harness.run(1))
    assert client.control(Cancel(request="r1")) == CancelReply(found=False)
