"""The memory of blobs keeps to its budget and forgets the oldest first."""

from __future__ import annotations

from outboard.protocol.blobs import BlobMemory
from outboard.protocol.values import WireTensor
from wire_samples import tensor


def test_the_oldest_is_forgotten_but_nothing_in_use() -> None:
    memory: BlobMemory[WireTensor] = BlobMemory(budget=100)
    for name in "abc":
        memory.add(name, tensor(10))
    assert memory.touch("a") is not None
    memory.trim({"b"})
    assert [name in memory for name in "abc"] == [True, True, False]
    memory.trim(set())
    assert len(memory) == 2


def test_adding_again_counts_once() -> None:
    memory: BlobMemory[WireTensor] = BlobMemory(budget=50)
    memory.add("a", tensor(10))
    memory.add("a", tensor(10))
    memory.trim(set())
    assert "a" in memory
    memory.clear()
    assert len(memory) == 0
