"""Two users with different LoRAs on one resident model: none ever sees the other's, whatever happens."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from itertools import pairwise

import pytest
import torch

import adapted
import harness
from outboard.engine.launch import Engine
from outboard.protocol.adapters import AdapterSet
from outboard.protocol.client import Client
from outboard.protocol.errors import InvalidRequestError, OutboardError
from outboard.protocol.messages import Message
from outboard.protocol.messages.client import CloseRun
from outboard.protocol.messages.control import Unload
from outboard.protocol.messages.engine import Prediction, Result, Step
from outboard.protocol.torch import from_wire, to_wire

STEPS = 2
LORAS = {"x": adapted.lora(1, every=6), "y": adapted.lora(2, -0.7, every=6), "none": AdapterSet([])}
pytestmark = pytest.mark.timeout(300)
#: A request that yields between its messages, and its latent in the end; nothing when it was taken back.
Job = Iterator[torch.Tensor | None]


class Interrupt(Exception):  # noqa: N818 - the word ComfyUI uses
    """What the user's red button raises in these tests."""


def whole(client: Client, name: str) -> Job:
    reply = client.request(harness.run(STEPS, adapters=client.adapt(LORAS[name])))
    assert isinstance(reply, Result)
    yield from_wire(reply.latent).clone()


def stepwise(client: Client, name: str) -> Job:
    run = f"run-{name}"
    x = harness.noise()
    for sigma, after in pairwise(torch.linspace(1, 0, STEPS + 1).tolist()):
        request = harness.predict(run, sigma).model_copy(
            update={"x": to_wire(x), "adapters": client.adapt(LORAS[name])}
        )
        reply = client.request(request)
        assert isinstance(reply, Prediction)
        x = x + (after - sigma) * from_wire(reply.v)
        yield None
    client.request(CloseRun(run=run))
    yield x


def taken_back(client: Client, name: str) -> Job:
    def stop(event: Message) -> None:
        if isinstance(event, Step):
            raise Interrupt

    with pytest.raises(Interrupt):
        client.request(harness.run(9, adapters=client.adapt(LORAS[name])), on_event=stop)
    yield None


def failing(client: Client, name: str) -> Job:
    """A LoRA of which the last patch does not fit: the first ones may already be on."""
    wrong = adapted.zeros(next(iter(adapted.matrices(1))), 3)
    broken = AdapterSet([*LORAS[name].adapters, *wrong.adapters], {**LORAS[name].tensors, **wrong.tensors})
    with pytest.raises(OutboardError):
        client.request(harness.run(STEPS, adapters=client.adapt(broken)))
    yield None


KINDS = {"whole": whole, "stepwise": stepwise}


def finished(job: Job) -> torch.Tensor | None:
    return list(job)[-1]


@pytest.fixture(scope="module")
def alone(engine: Engine) -> dict[tuple[str, str], torch.Tensor]:
    """Each LoRA on each path, with a model that has never worn anything else."""
    client = harness.connect(engine)
    found = {}
    for name in LORAS:
        for kind, make in KINDS.items():
            client.control(Unload(), timeout=20)
            latent = finished(make(client, name))
            assert latent is not None
            found[name, kind] = latent
    client.close()
    assert not torch.equal(found["x", "whole"], found["none", "whole"])
    assert not torch.equal(found["x", "whole"], found["y", "whole"])
    return found


def test_fifty_interleaved_runs_are_each_as_if_alone(
    client: Client, other: Client, alone: dict[tuple[str, str], torch.Tensor]
) -> None:
    chance = random.Random(20)
    clients = {"x": client, "y": other, "none": client}
    jobs: dict[str, tuple[str, Job]] = {}
    ended = interleaved = 0
    last = ""
    while ended < 50:
        name = chance.choice(list(clients))
        if name not in jobs:
            if chance.random() < 0.25:
                finished(chance.choice([taken_back, failing])(clients[name], name))
            kind = chance.choice(list(KINDS))
            jobs[name] = kind, KINDS[kind](clients[name], name)
        kind, job = jobs[name]
        interleaved += name != last and kind == "stepwise"
        last = name
        latent = next(job)
        if latent is not None:
            assert torch.equal(latent, alone[name, kind]), (ended, name, kind)
            del jobs[name]
            ended += 1
    assert interleaved > 40


def test_two_users_at_once_are_each_as_if_alone(
    engine: Engine, alone: dict[tuple[str, str], torch.Tensor]
) -> None:
    wrong: list[str] = []

    def work(name: str) -> None:
        mine = harness.connect(engine, name)
        for turn in range(8):
            kind = list(KINDS)[turn % 2]
            latent = finished(KINDS[kind](mine, name))
            if latent is None or not torch.equal(latent, alone[name, kind]):
                wrong.append(f"{name} {kind} {turn}")
        mine.close()

    threads = [threading.Thread(target=work, args=(name,)) for name in LORAS]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_a_model_that_was_unloaded_wears_its_request_again(
    client: Client, alone: dict[tuple[str, str], torch.Tensor]
) -> None:
    for name in ("x", "y", "none", "x"):
        latent = finished(whole(client, name))
        assert latent is not None and torch.equal(latent, alone[name, "whole"])
        client.control(Unload(), timeout=20)


def test_a_patch_of_no_weight_is_an_error_that_names_it(client: Client) -> None:
    name = client.adapt(adapted.zeros("mid.proj.weight", 4))
    with pytest.raises(InvalidRequestError, match=r"mid\.proj\.weight"):
        client.request(harness.run(1, adapters=name))
