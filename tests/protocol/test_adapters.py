"""Sets of adapters: named by their content, sent once, and sent again when the engine has dropped them."""

from __future__ import annotations

import json
from hashlib import blake2b
from typing import Any

import pytest

from outboard.protocol import adapters as sets
from outboard.protocol.adapters import AdapterSet, set_digest
from outboard.protocol.codec import Envelope, decode, encode
from outboard.protocol.errors import (
    CheckpointError,
    LimitError,
    MissingBlobError,
    ModelNotFoundError,
    ProtocolError,
    UnsupportedRequestError,
)
from outboard.protocol.failure import to_message
from outboard.protocol.messages import Message
from outboard.protocol.messages.adapters import LoraFile, WeightPatch
from outboard.protocol.messages.client import Predict, PutAdapters
from outboard.protocol.messages.engine import Prediction, Stored
from outboard.protocol.tensors import digest
from outboard.protocol.values import Blob, WireTensor
from wire_engine import ScriptedEngine, Session, answer, wearing
from wire_samples import DIGEST, tensor

UP, DOWN = tensor(8, 4), tensor(4, 6, dtype="bfloat16")
FILE = LoraFile(name="ink.safetensors", size=3, digest=DIGEST, strength=1.0)


def patch(key: str = "a.weight", strength: float = 1.0, **fields: Any) -> WeightPatch:
    tensors: dict[str, WireTensor | Blob] = {"up": Blob(digest(UP)), "down": Blob(digest(DOWN))}
    return WeightPatch(**{"kind": "lora", "key": key, "tensors": tensors, "strength": strength, **fields})


def lora(*patches: WeightPatch | LoraFile) -> AdapterSet:
    return AdapterSet(patches or (patch(),), {digest(wire): wire for wire in (UP, DOWN)})


def sent(engine: ScriptedEngine) -> list[int]:
    """How many tensors each put_adapters brought."""
    return [sum(isinstance(value, WireTensor) for value in values(message)) for message in puts(engine)]


def puts(engine: ScriptedEngine) -> list[PutAdapters]:
    return [message for message in engine.seen if isinstance(message, PutAdapters)]


def values(message: PutAdapters) -> list[WireTensor | Blob]:
    patches = [adapter for adapter in message.adapters if isinstance(adapter, WeightPatch)]
    return [value for one in patches for value in one.tensors.values()]


def test_the_digest_is_that_of_the_specification() -> None:
    record = {
        "kind": "lora",
        "key": "ü.weight",
        "tensors": {"up": {"$blob": digest(UP)}, "down": {"$blob": digest(DOWN)}},
        "strength": 0.1,
        "strength_model": 1.0,
        "alpha": None,
        "offset": [0, 1, 2],
        "bypass": False,
    }
    file = {
        "kind": "file",
        "folder": "loras",
        "name": "ink.safetensors",
        "size": 3,
        "digest": DIGEST,
        "strength": 1.0,
    }
    text = json.dumps({"adapters": [record, file], "parts": [DIGEST]}, sort_keys=True).replace(" ", "")
    expected = blake2b(text.encode("ascii"), digest_size=16).hexdigest()
    adapters: list[WeightPatch | LoraFile] = [patch("ü.weight", 0.1, offset=[0, 1, 2]), FILE]
    assert set_digest([DIGEST], adapters) == expected


def test_the_digest_is_the_same_whether_tensors_are_there_or_named() -> None:
    named = lora().messages[0]
    whole = lora().with_tensors(named, [digest(UP), digest(DOWN)])
    assert set_digest([], whole.adapters) == named.digest == set_digest([], named.adapters)


@pytest.mark.parametrize(
    "other",
    [
        patch(strength=0.5),
        patch("b.weight"),
        patch(alpha=1.0),
        patch(bypass=True),
        patch(tensors={"up": Blob(digest(DOWN)), "down": Blob(digest(UP))}),
    ],
)
def test_another_patch_has_another_digest(other: WeightPatch) -> None:
    assert lora(other).digest != lora().digest


@pytest.mark.parametrize(
    "wrong",
    [
        {"kind": "lorx"},
        {"kind": None},
        {"key": ""},
        {"key": "a" * 2000},
        {"offset": [0, 1]},
        {"offset": [0, -1, 2]},
        {"offset": [0, 0, 0]},
        {"offset": [-1, 0, 1]},
        {"strength": "1"},
        {"strength": None},
        {"strength_model": True},
        {"tensors": {"up": 1.0}},
        {"tensors": {"up/down": {"$blob": DIGEST}}},
        {"bypass": 1},
    ],
    ids=str,
)
def test_a_patch_is_validated(wrong: dict[str, Any]) -> None:
    fields = {"kind": "lora", "key": "a", "tensors": {}, "strength": 1.0}
    assert put(fields).adapters
    with pytest.raises(ProtocolError):
        put({**fields, **wrong})


@pytest.mark.parametrize(
    "wrong",
    [{"name": "../ink.safetensors"}, {"name": "/ink.safetensors"}, {"name": "a//b"}, {"name": "C:\\ink"},
     {"folder": "diffusion_models"}, {"size": -1}, {"digest": "0"}],
    ids=str,
)  # fmt: skip
def test_a_file_is_validated(wrong: dict[str, Any]) -> None:
    fields = vars(FILE)
    assert put(fields).adapters == [FILE]
    with pytest.raises(ProtocolError):
        put({**fields, **wrong})


def put(fields: dict[str, Any]) -> PutAdapters:
    """A message with one adapter of these fields, as it arrives."""
    message = PutAdapters.model_construct(digest=DIGEST, parts=[], adapters=[fields])
    arrived = decode([bytes(frame) for frame in encode(Envelope(message, "r"))]).message
    assert isinstance(arrived, PutAdapters)
    return arrived


@pytest.mark.parametrize("strength", [float("nan"), float("inf")])
def test_a_strength_is_finite(strength: float) -> None:
    with pytest.raises(ValueError, match="finite"):
        patch(strength=strength)


def test_a_set_is_sent_once_and_another_strength_sends_no_tensor(session: Session) -> None:
    with session() as (client, engine):
        name = client.adapt(lora())
        assert client.adapt(lora()) == name == lora().digest
        other = client.adapt(lora(patch(strength=-2.0)))
        assert other != name
        assert sent(engine) == [0, 2, 0]
        assert isinstance(client.request(wearing(other)), Prediction)
        assert client.adapt(AdapterSet([])) == ""


def test_a_set_the_engine_forgot_is_sent_again(session: Session) -> None:
    with session() as (client, engine):
        name = client.adapt(lora())
        engine.sets.clear()
        assert isinstance(client.request(wearing(name)), Prediction)
        engine.sets.clear()
        engine.blobs.clear()
        assert isinstance(client.request(wearing(name)), Prediction)
        assert sent(engine) == [0, 2, 0, 0, 2]


def test_a_set_nobody_has_is_an_error(session: Session) -> None:
    with session() as (client, _), pytest.raises(MissingBlobError):
        client.request(wearing(DIGEST))


def test_a_large_set_goes_in_parts_in_order(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sets, "LARGEST_COUNT", 2)
    whole = lora(*(patch(f"{n}.weight") for n in range(5)))
    with session() as (client, engine):
        name = client.adapt(whole)
        last = engine.sets[name]
        assert [len(engine.sets[part].adapters) for part in last.parts] == [2, 2, 1]
        keys = [one.key for part in last.parts for one in engine.sets[part].adapters]  # type: ignore[union-attr]
        assert keys == [f"{n}.weight" for n in range(5)]
        assert last.adapters == []
        del engine.sets[last.parts[1]], engine.sets[name]
        assert isinstance(client.request(wearing(name)), Prediction)


def test_a_set_goes_in_parts_by_its_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sets, "LARGEST_BYTES", UP.nbytes + DOWN.nbytes)
    assert len(lora(patch("a"), FILE, patch("b")).messages) == 3


def test_an_engine_that_drops_parts_at_once_is_an_error(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sets, "LARGEST_COUNT", 1)

    def forgetful(message: Message) -> list[Message]:
        assert isinstance(message, PutAdapters)
        missing = MissingBlobError("gone", details={"digests": " ".join(message.parts)})
        return [to_message(missing)] if message.parts else answer_stored(message)

    opened = session(handlers={"put_adapters": forgetful})
    with opened as (client, _), pytest.raises(LimitError, match="adapter-budget"):
        client.adapt(lora(patch("a"), patch("b")))


def answer_stored(message: PutAdapters) -> list[Message]:
    return [Stored(digest=message.digest)]


def test_an_engine_without_adapters_is_told_none(session: Session) -> None:
    with session(capabilities=()) as (client, engine):
        with pytest.raises(UnsupportedRequestError, match="no LoRA"):
            client.adapt(lora())
        assert puts(engine) == []
        assert client.adapt(AdapterSet([])) == ""


@pytest.mark.parametrize("error", [ModelNotFoundError, CheckpointError])
def test_a_file_the_engine_cannot_use_is_an_error_of_its_class(
    session: Session, error: type[ModelNotFoundError]
) -> None:
    opened = session(handlers={"put_adapters": answer(to_message(error("no such file")))})
    with opened as (client, _), pytest.raises(error):
        client.adapt(lora(FILE))


def test_adapters_memory_keeps_to_its_budget(session: Session) -> None:
    with session({"blob_memory": UP.nbytes + DOWN.nbytes}) as (client, engine):
        first, second = lora(), lora(patch(strength=2.0))
        for one in (first, second, first):
            client.adapt(one)
        assert len(puts(engine)) == 4, "the first was forgotten, and asked for again without tensors"
        assert sent(engine) == [0, 2, 0, 0]


def test_a_request_without_adapters_names_none() -> None:
    assert Predict.model_fields["adapters"].default == ""
