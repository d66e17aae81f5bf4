"""The sets of adapters that a rank holds: checked, shared, and dropped when their budget is spent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from outboard.engine.lora.patch import Patch
from outboard.engine.rank.adapters import AdapterStore, FileEntry
from outboard.engine.rank.blobs import BlobStore
from outboard.protocol import adapters as sets
from outboard.protocol.adapters import AdapterSet, set_digest
from outboard.protocol.errors import InvalidRequestError, LimitError, MissingBlobError
from outboard.protocol.messages.adapters import LoraFile, WeightPatch
from outboard.protocol.messages.client import PutAdapters
from outboard.protocol.tensors import digest
from outboard.protocol.torch import from_wire, to_wire
from outboard.protocol.values import Blob, WireTensor

BUDGET = 4096
FILE = LoraFile(name="a.safetensors", size=1, digest="0" * 32, strength=0.5)


@pytest.fixture
def blobs() -> BlobStore:
    return BlobStore(BUDGET)


@pytest.fixture
def store(blobs: BlobStore) -> AdapterStore:
    return AdapterStore(BUDGET, blobs)


def wire(seed: int, rows: int = 8) -> WireTensor:
    return to_wire(torch.randn(rows, 8, generator=torch.Generator().manual_seed(seed)))


def message(*adapters: WeightPatch | LoraFile, parts: Sequence[str] = ()) -> PutAdapters:
    return PutAdapters(digest=set_digest(parts, adapters), parts=list(parts), adapters=list(adapters))


def diff(value: WireTensor | Blob, strength: float = 1.0, **fields: Any) -> WeightPatch:
    return WeightPatch(kind="diff", key="a.weight", tensors={"diff": value}, strength=strength, **fields)


def patches(store: AdapterStore, name: str) -> list[Patch]:
    return [entry for entry in store.get(name) if isinstance(entry, Patch)]


def test_a_set_comes_back_as_patches_in_order(store: AdapterStore) -> None:
    sent = message(diff(wire(1), 0.5, offset=[0, 2, 4], bypass=True), FILE, diff(wire(2)))
    store.put(sent, ["there/a.safetensors"])
    first, file, second = store.get(sent.digest)
    assert isinstance(first, Patch) and isinstance(second, Patch)
    assert (first.strength, first.offset, first.bypass) == (0.5, (0, 2, 4), True)
    assert file == FileEntry("there/a.safetensors", FILE)
    assert torch.equal(second.tensors["diff"], torch.randn(8, 8, generator=torch.Generator().manual_seed(2)))
    assert store.get("") == ()


def test_a_set_keeps_its_own_copy(store: AdapterStore) -> None:
    memory = torch.ones(8, 8)
    sent = message(diff(to_wire(memory)))
    store.put(sent, [])
    memory.zero_()
    assert float(patches(store, sent.digest)[0].tensors["diff"].sum()) == 64


def test_a_wrong_digest_is_refused(store: AdapterStore) -> None:
    sent = message(diff(wire(1)))
    forged = sent.model_copy(update={"adapters": [diff(wire(1), 0.5)]})
    with pytest.raises(InvalidRequestError, match="another digest"):
        store.put(forged, [])
    with pytest.raises(MissingBlobError):
        store.get(sent.digest)


def test_a_known_tensor_need_not_come_again(store: AdapterStore, blobs: BlobStore) -> None:
    held, blob = wire(1), wire(2)
    store.put(message(diff(held)), [])
    blobs.put(digest(blob), blob)
    again = message(diff(Blob(digest(held)), 2.0), diff(Blob(digest(blob))))
    store.put(again, [])
    assert [patch.strength for patch in patches(store, again.digest)] == [2.0, 1.0]
    assert store.nbytes == held.nbytes + blob.nbytes


def test_what_is_missing_is_named(store: AdapterStore) -> None:
    with pytest.raises(MissingBlobError) as caught:
        store.put(message(diff(Blob("1" * 32)), diff(Blob("2" * 32)), parts=["3" * 32]), [])
    assert caught.value.details["digests"].split() == ["3" * 32, "1" * 32, "2" * 32]
    with pytest.raises(MissingBlobError) as caught:
        store.get("4" * 32)
    assert caught.value.details["digests"] == "4" * 32


def test_equal_tensors_are_held_once(store: AdapterStore) -> None:
    sent = message(diff(wire(1)), diff(wire(1), 0.5))
    store.put(sent, [])
    one, two = patches(store, sent.digest)
    assert one.tensors["diff"] is two.tensors["diff"]
    assert store.nbytes == wire(1).nbytes


def test_the_least_used_set_goes_when_the_budget_is_spent(store: AdapterStore) -> None:
    sent = [message(diff(wire(seed, rows=60))) for seed in range(3)]
    for one in sent[:2]:
        store.put(one, [])
    store.get(sent[0].digest)
    store.put(sent[2], [])
    assert store.nbytes <= BUDGET
    assert patches(store, sent[0].digest) and patches(store, sent[2].digest)
    with pytest.raises(MissingBlobError):
        store.get(sent[1].digest)


def test_a_set_beyond_the_whole_budget_is_refused(store: AdapterStore) -> None:
    with pytest.raises(LimitError, match="adapter budget"):
        store.put(message(diff(wire(1, rows=200))), [])
    assert store.nbytes == 0


def test_parts_make_a_whole_in_their_order(store: AdapterStore) -> None:
    parts = [message(diff(wire(1))), message(diff(wire(2)), diff(wire(3)))]
    for part in parts:
        store.put(part, [])
    whole = message(diff(wire(4), 0.25), parts=[part.digest for part in parts])
    store.put(whole, [])
    assert [patch.strength for patch in patches(store, whole.digest)] == [1.0, 1.0, 1.0, 0.25]
    for seed in range(5, 9):
        store.put(message(diff(wire(seed, rows=40))), [])
    with pytest.raises(MissingBlobError):
        store.get(parts[0].digest)


def test_a_set_that_is_put_again_stays(store: AdapterStore) -> None:
    sent = message(diff(wire(1)))
    store.put(sent, [])
    before = store.get(sent.digest)
    store.put(sent, [])
    assert store.get(sent.digest) is before
    assert store.nbytes == wire(1).nbytes


def test_what_a_client_splits_is_put_together(store: AdapterStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sets, "LARGEST_COUNT", 2)
    wires = [wire(seed) for seed in range(3)]
    whole = AdapterSet([diff(Blob(digest(one))) for one in wires], {digest(one): one for one in wires})
    assert len(whole.messages) == 3
    for sent in whole.messages:
        store.put(whole.with_tensors(sent, whole.tensors), [])
    values = [float(patch.tensors["diff"][0, 0]) for patch in patches(store, whole.digest)]
    assert values == [float(from_wire(one)[0, 0]) for one in wires]
