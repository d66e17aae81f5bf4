"""One engine at work: loading, running, predicting, unloading, refusing."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch

import harness
from outboard.engine.demo.assets import MODEL
from outboard.engine.launch import Engine
from outboard.engine.models.loader import load
from outboard.engine.sampling.call import Call
from outboard.engine.sampling.flow import Flow
from outboard.engine.sampling.guidance import cfg_denoiser
from outboard.engine.sampling.loop import SampleRequest, sample
from outboard.protocol.address import Address
from outboard.protocol.client import Client
from outboard.protocol.codec import Envelope, decode, encode
from outboard.protocol.errors import (
    AuthError,
    CheckpointError,
    EngineLostError,
    InvalidRequestError,
    LimitError,
    ModelNotFoundError,
    ProtocolError,
    UnsupportedModelError,
    UnsupportedRequestError,
    VersionError,
)
from outboard.protocol.failure import from_message
from outboard.protocol.handshake import shake
from outboard.protocol.messages import Message
from outboard.protocol.messages.client import CloseRun, Hello, Load
from outboard.protocol.messages.common import Branch, Report
from outboard.protocol.messages.control import Pong, Status, Unload, Unloaded
from outboard.protocol.messages.engine import Closed, Error, Loaded, Prediction, Result, Step
from outboard.protocol.sockets import SocketChannel
from outboard.protocol.tensors import digest
from outboard.protocol.torch import from_wire, to_wire


def result(client: Client, message: Message) -> Result:
    reply = client.request(message)
    assert isinstance(reply, Result)
    return reply


def bare(steps: int, cfg: float) -> torch.Tensor:
    """The same loop in this process."""
    flow = Flow(1.0)
    model = load(MODEL, dtype=torch.float32, device=torch.device("cpu"))

    def forward(x: torch.Tensor, sigma: torch.Tensor, conditioning: Any, _: Call) -> torch.Tensor:
        return flow.denoised(x, model.predict(x, flow.timestep(sigma), conditioning).float(), sigma)

    both = [
        {name: from_wire(wire) for name, wire in harness.branch(digit).conditioning.items()}
        for digit in (3, None)
    ]
    denoiser = cfg_denoiser(forward, *both, cfg=cfg, rows=1)
    start = harness.noise()
    request = SampleRequest("euler", torch.linspace(1, 0, steps + 1), start, torch.zeros_like(start), 1, flow)
    return sample(request, denoiser)


def test_a_run_is_the_same_loop_as_in_one_process(client: Client) -> None:
    found = result(client, harness.run(4, cfg=2.0, negative=[harness.branch(None)]))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    expected = bare(4, 2.0)
    torch.set_num_threads(threads)
    assert torch.equal(from_wire(found.latent), expected)


def test_a_run_reports_what_it_did(client: Client) -> None:
    steps: list[Message] = []
    client.request(harness.run(1))
    reply = client.request(harness.run(3, sampler="heun", preview=True), on_event=steps.append)
    assert isinstance(reply, Result)
    report = reply.report
    assert [step.index for step in steps if isinstance(step, Step) and step.x0] == [0, 1, 2]
    assert (report.path, report.family, report.dtype, report.device) == (
        "whole_loop",
        "flux1",
        "float32",
        "cpu",
    )
    assert (report.steps, report.forwards, report.sampler) == (3, 5, "heun")
    assert report.bytes_out == 4 * reply.latent.nbytes
    assert report.bytes_in > 2 * reply.latent.nbytes
    assert report.seconds > 0 and report.peak_bytes[0] > report.resident_bytes > 0
    assert report.seconds_loading == 0


def test_a_result_comes_through_shared_memory_when_there_is_a_slot(client: Client) -> None:
    plain = from_wire(result(client, harness.run(2)).latent)
    slot = client.reply_slot(plain.nbytes)
    assert slot is not None
    assert torch.equal(from_wire(result(client, harness.run(2, reply=slot)).latent), plain)


def test_blobs_and_tensors_condition_alike(client: Client) -> None:
    plain = from_wire(result(client, harness.run(2)).latent)
    big = {name: to_wire(from_wire(wire).repeat(64, 1, 1)) if name == "context" else wire
           for name, wire in harness.branch(3).conditioning.items()}  # fmt: skip
    interned = client.intern(big)
    assert type(interned["context"]).__name__ == "Blob"
    found = result(client, harness.run(2, positive=[Branch(id="b", conditioning=interned)]))
    assert torch.equal(from_wire(found.latent), plain)


def test_a_run_after_unload_loads_by_itself(client: Client) -> None:
    before = from_wire(result(client, harness.run(2)).latent)
    held = harness.status(client).ranks[0].resident_bytes
    unloaded = client.control(Unload(), timeout=20)
    assert isinstance(unloaded, Unloaded)
    assert unloaded.bytes_freed == held > 0
    harness.wait_until(lambda: harness.status(client).models == [], 5, "status shows no model")
    again = result(client, harness.run(2))
    assert torch.equal(from_wire(again.latent), before)
    assert again.report.seconds_loading > 0


def test_a_model_is_resident_once_for_each_dtype(client: Client) -> None:
    client.control(Unload(), timeout=20)
    for dtype in ("auto", "float32", "bfloat16"):
        reply = client.request(Load(model=harness.ref(), settings={"dtype": dtype}))  # type: ignore[arg-type]
        assert isinstance(reply, Loaded)
    harness.wait_until(lambda: len(harness.status(client).models) == 2, 5, "two models")
    assert sorted(model.dtype for model in harness.status(client).models) == ["bfloat16", "float32"]


def test_per_step_predictions_have_their_own_account(client: Client) -> None:
    for sigma in (1.0, 1.0, 0.5):
        reply = client.request(harness.predict("mine", sigma))
        assert isinstance(reply, Prediction)
        assert reply.v.shape == (1, 16, 8, 8)
    closed = client.request(CloseRun(run="mine"))
    assert isinstance(closed, Closed) and isinstance(closed.report, Report)
    assert (closed.report.path, closed.report.steps, closed.report.forwards) == ("per_step", 2, 3)
    assert client.request(CloseRun(run="mine")) == Closed(report=None)


def test_another_resolution_or_batch_next_sees_nothing_of_the_last(client: Client) -> None:
    first = from_wire(result(client, harness.run(2)).latent)
    wide = to_wire(torch.zeros(3, 16, 8, 12))
    result(client, harness.run(2, noise=wide, latent=wide))
    assert torch.equal(from_wire(result(client, harness.run(2)).latent), first)


def test_nan_names_the_step(client: Client) -> None:
    broken = harness.noise()
    broken[0, 0, 0, 0] = float("nan")
    with pytest.raises(Exception, match="step 1 of 2"):
        client.request(harness.run(2, noise=to_wire(broken)))


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"sampler": "euler_cfg_pp"}, UnsupportedRequestError),
        ({"sampler_options": {"nonsense": 1.0}}, UnsupportedRequestError),
        ({"cfg": 2.0}, InvalidRequestError),
        ({"noise": to_wire(torch.zeros(1, 16, 8, 4))}, InvalidRequestError),
        ({"positive": [Branch(id="x", conditioning={"surprise": 1.0})]}, UnsupportedRequestError),
    ],
)
def test_what_cannot_be_honoured_is_refused(client: Client, changes: dict[str, object], error: type) -> None:
    with pytest.raises(error):
        client.request(harness.run(2, **changes))


def test_a_file_that_is_not_there_or_differs_is_refused(client: Client) -> None:
    known = harness.ref()
    for changes, error, words in (
        ({"name": "other.safetensors"}, ModelNotFoundError, "has no diffusion_models file"),
        ({"name": "model.ckpt"}, UnsupportedModelError, "not a .safetensors or .gguf"),
        ({"digest": "0" * 32}, CheckpointError, "differs"),
        ({"size": 12}, CheckpointError, "differs"),
    ):
        with pytest.raises(error, match=words):
            client.request(Load(model=known.model_copy(update=changes)))


def test_a_name_that_leaves_the_roots_is_refused_before_any_file_is_touched(
    engine: Engine, client: Client
) -> None:
    frames = encode(Envelope(Load(model=harness.ref()), "x", client.welcome.session))
    header = bytes(frames[0])
    name = b"outboard-digits.safetensors"
    for escape in (b"../" + name[3:], b"/tmp/" + name[5:]):
        channel = SocketChannel(engine.address.work)
        channel.send([header.replace(name, escape)])
        reply = channel.recv(5.0)
        assert reply is not None
        message = decode(reply).message
        assert isinstance(message, Error) and isinstance(from_message(message), ProtocolError)
        channel.close()


def test_a_wrong_token_and_another_version_are_refused(engine: Engine) -> None:
    wrong = Address(engine.address.work, engine.address.control, "wrong")
    with pytest.raises(AuthError):
        Client.connect(wrong, client="test", timeout=5)
    channel = SocketChannel(engine.address.work)
    hello = Hello(protocol="9.0", client="test", version="9", token=engine.address.token)
    with pytest.raises(VersionError, match=r"9\.0.*2\.0"):
        shake(channel, hello, timeout=5)
    channel.close()


def test_a_stranger_on_either_channel_is_answered_with_an_error(engine: Engine) -> None:
    for endpoint, message in ((engine.address.work, harness.run(1)), (engine.address.control, Status())):
        channel = SocketChannel(endpoint)
        channel.send(encode(Envelope(message, "r", "nobody")))
        reply = channel.recv(5.0)
        assert reply is not None
        answer = decode(reply).message
        assert isinstance(answer, Error)
        assert isinstance(from_message(answer), AuthError | EngineLostError)
        channel.close()


def test_noise_and_unknown_types_do_not_harm_the_engine(engine: Engine, client: Client) -> None:
    channel = SocketChannel(engine.address.work)
    for frames in ([b"GET / HTTP/1.1"], [b""], [os.urandom(200), os.urandom(10)], [b"\x80\x04."]):
        channel.send(frames)
    header = bytes(encode(Envelope(Pong(), "u", client.welcome.session))[0])
    channel.send([header.replace(b"pong", b"gong")])
    answers = []
    while (reply := channel.recv(1.0)) is not None:
        answers.append(decode(reply))
    channel.close()
    assert any(found.id == "u" and isinstance(found.message, Error) for found in answers)
    assert isinstance(client.request(harness.run(1)), Result)


def test_the_blob_budget_holds_and_dropped_blobs_come_again(runtime: Path) -> None:
    engine = harness.start("--blob-budget=1M")
    client = harness.connect(engine)
    parts = [to_wire(torch.randn(1, 100_000)) for _ in range(6)]
    names = client.intern(parts)
    assert [blob.digest for blob in names] == [digest(part) for part in parts]
    context = client.intern({"context": to_wire(torch.randn(1, 300, 64))})
    branch = Branch(id="b", conditioning={**harness.branch(3).conditioning, **context})
    assert isinstance(client.request(harness.run(1, positive=[branch])), Result)
    assert 0 < harness.status(client).blobs_bytes <= 2**20
    client.intern(parts)
    assert isinstance(client.request(harness.run(1, positive=[branch])), Result)
    with pytest.raises(LimitError, match="blob budget"):
        client.intern([to_wire(torch.zeros(300_000))])
    client.close()
    engine.stop()
