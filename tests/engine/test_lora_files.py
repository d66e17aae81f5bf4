"""LoRA files below the engine's roots: found by name, read by the rank, reported."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import adapted
import harness
from outboard.engine.launch import Engine
from outboard.protocol.adapters import AdapterSet
from outboard.protocol.client import Client
from outboard.protocol.codec import Envelope, decode, encode
from outboard.protocol.errors import (
    CheckpointError,
    LimitError,
    ModelNotFoundError,
    ProtocolError,
    UnsupportedModelError,
)
from outboard.protocol.failure import from_message
from outboard.protocol.messages.common import Report
from outboard.protocol.messages.engine import Error, Result
from outboard.protocol.sockets import SocketChannel
from outboard.protocol.torch import from_wire


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("loras")


@pytest.fixture(scope="module")
def served(folder: Path) -> Iterator[Engine]:
    """An engine that may read LoRAs in `folder`, in a runtime folder of its own with a short path."""
    runtime = Path(tempfile.mkdtemp(prefix="obe"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OUTBOARD_RUNTIME_DIR", str(runtime))
        started = harness.start(roots={"loras": (folder,)})
    yield started
    started.stop()
    shutil.rmtree(runtime)


@pytest.fixture
def mine(served: Engine) -> Iterator[Client]:
    client = harness.connect(served)
    yield client
    client.close()


def run(client: Client, adapters: AdapterSet) -> tuple[torch.Tensor, Report]:
    reply = client.request(harness.run(2, adapters=client.adapt(adapters)))
    assert isinstance(reply, Result)
    return from_wire(reply.latent).clone(), reply.report


def test_a_file_and_its_tensors_draw_the_same(mine: Client, folder: Path) -> None:
    file = adapted.file(folder / "ink.safetensors", seed=1)
    by_file, told = run(mine, AdapterSet([file]))
    by_tensors, report = run(mine, adapted.lora(1))
    assert torch.equal(by_file, by_tensors)
    assert (told.adapters, told.adapted_weights) == (1, len(adapted.matrices(1)))
    assert report.adapters == report.adapted_weights == told.adapted_weights
    assert told.seconds_loading > 0
    assert run(mine, adapted.lora(1))[1].seconds_loading == 0, "it was worn already"
    assert not torch.equal(by_file, run(mine, AdapterSet([]))[0])


def test_files_and_patches_go_in_their_order_with_their_strengths(mine: Client, folder: Path) -> None:
    file = adapted.file(folder / "two.safetensors", seed=4)
    mixed = adapted.lora(5, 0.5)
    weaker = file.model_copy(update={"strength": 0.25})
    found, _ = run(mine, AdapterSet([*mixed.adapters, weaker], mixed.tensors))
    second = adapted.lora(4, 0.25)
    both = AdapterSet([*mixed.adapters, *second.adapters], {**mixed.tensors, **second.tensors})
    assert torch.equal(found, run(mine, both)[0])


def test_keys_that_fit_nothing_are_reported(mine: Client, folder: Path) -> None:
    file = adapted.file(folder / "stray.safetensors", seed=1, stray=2)
    _, report = run(mine, AdapterSet([file]))
    assert len(report.unmatched_keys) == 2
    assert all("nowhere" in key for key in report.unmatched_keys)


def test_a_file_that_fits_nothing_is_an_error_that_names_it(mine: Client, folder: Path) -> None:
    file = adapted.file(folder / "other.safetensors", seed=999, stray=2, every=1000)
    name = mine.adapt(AdapterSet([file]))
    with pytest.raises(CheckpointError, match=r"other\.safetensors: none of its 2 keys"):
        mine.request(harness.run(1, adapters=name))
    assert run(mine, AdapterSet([]))[1].adapters == 0


def test_a_file_the_engine_cannot_use_is_refused_when_it_is_put(mine: Client, folder: Path) -> None:
    known = adapted.file(folder / "known.safetensors", seed=1)
    for changes, error, words in (
        ({"name": "unknown.safetensors"}, ModelNotFoundError, "has no loras file"),
        ({"name": "known.pt"}, UnsupportedModelError, "opens no other kind in loras"),
        ({"size": 12}, CheckpointError, "differs"),
        ({"digest": "0" * 32}, CheckpointError, "differs"),
    ):
        with pytest.raises(error, match=words):
            mine.adapt(AdapterSet([known.model_copy(update=changes)]))


def test_a_file_that_changes_later_is_refused_by_name(mine: Client, folder: Path) -> None:
    name = mine.adapt(AdapterSet([adapted.file(folder / "later.safetensors", seed=1)]))
    adapted.file(folder / "later.safetensors", seed=1, stray=1)
    with pytest.raises(CheckpointError, match="has changed"):
        mine.request(harness.run(1, adapters=name))


def test_a_name_that_leaves_the_roots_is_refused_before_any_file_is_touched(
    served: Engine, mine: Client, folder: Path
) -> None:
    file = adapted.file(folder / "inside.safetensors", seed=1)
    (put,) = AdapterSet([file]).messages
    header = bytes(encode(Envelope(put, "x", mine.welcome.session))[0])
    for escape in (b"../ide.safetensors", b"/tmp/e.safetensors"):
        channel = SocketChannel(served.address.work)
        channel.send([header.replace(b"inside.safetensors", escape)])
        reply = channel.recv(5.0)
        assert reply is not None
        message = decode(reply).message
        assert isinstance(message, Error) and isinstance(from_message(message), ProtocolError)
        channel.close()


def test_the_adapter_budget_holds_and_dropped_sets_come_again(runtime: Path) -> None:
    one, two = adapted.lora(1, every=6), adapted.lora(2, every=6)
    budget = max(one.nbytes, two.nbytes) * 3 // 2
    engine = harness.start(f"--adapter-budget={budget}")
    client = harness.connect(engine)
    first = run(client, one)[0]
    for adapters in (two, one, two):
        run(client, adapters)
        assert 0 < harness.status(client).blobs_bytes <= budget
    assert torch.equal(run(client, one)[0], first)
    with pytest.raises(LimitError, match="adapter-budget"):
        client.adapt(adapted.lora(3, every=1))
    client.close()
    engine.stop()
