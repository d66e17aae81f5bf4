"""When memory is short a forward is made in parts, on both paths, and the report says so."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor

import harness
from cached_runs import called
from outboard.engine.demo.draw import shipped_model
from outboard.engine.models.model import Model
from outboard.engine.rank.blobs import BlobStore
from outboard.engine.rank.peers import Alone
from outboard.engine.rank.run import Outcome, prepare_loop
from outboard.engine.rank.steps import Account
from outboard.protocol.errors import InvalidRequestError, OutOfMemoryError
from outboard.protocol.torch import pack_tree, to_wire

STEPS = 3


@dataclass
class Room:
    """Room for so many rows; every forward that was tried."""

    rows: int = 99
    tried: list[int] = field(default_factory=list)


@pytest.fixture
def room(monkeypatch: pytest.MonkeyPatch) -> Room:
    found = Room()
    predicted = Model.predict

    def within(self: Model, x: Tensor, timestep: Tensor, conditioning: Any) -> Tensor:
        found.tried.append(len(x))
        if len(x) > found.rows:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.")
        return predicted(self, x, timestep, conditioning)

    monkeypatch.setattr(Model, "predict", within)
    return found


def outcome() -> Outcome:
    run = harness.run(STEPS, cfg=4.0, negative=[harness.branch(None)])
    return prepare_loop(run, shipped_model(), BlobStore(0), check=lambda: None, tell=lambda _: None).sample(
        Alone()
    )


def test_a_run_goes_on_in_parts(room: Room) -> None:
    whole = outcome()
    room.rows = 1
    room.tried.clear()
    parts = outcome()
    assert torch.allclose(parts.latent, whole.latent, rtol=0, atol=1e-5)
    assert (whole.splits, whole.forwards) == (0, STEPS)
    assert (parts.splits, parts.forwards) == (1, 2 * STEPS)
    assert room.tried == [2, *[1] * 2 * STEPS]


def test_a_run_that_does_not_fit_in_parts_says_which_rows(room: Room) -> None:
    room.rows = 0
    with pytest.raises(OutOfMemoryError, match=r"1 rows, 1 for each of 1 conditionings, at step 1: CUDA"):
        outcome()


def account() -> Account:
    return Account("digits", "flux1", "float32", torch.device("cpu"))


def test_a_prediction_is_made_in_parts_too(room: Room) -> None:
    both = {name: torch.cat([tensor, tensor * 0.5]) for name, tensor in conditioning().items()}
    request = harness.predict("r").model_copy(
        update={
            "x": to_wire(harness.noise(rows=2)),
            "timestep": to_wire(torch.tensor([0.5, 0.5])),
            "branches": ["0.n", "1.p"],
            "conditioning": pack_tree(both),
        }
    )
    whole, _ = called(request, shipped_model(), account())
    room.rows = 1
    room.tried.clear()
    kept = account()
    for _ in range(2):
        parts, _ = called(request, shipped_model(), kept)
    assert torch.allclose(parts, whole, rtol=0, atol=1e-5)
    assert room.tried == [2, 1, 1, 1, 1]
    assert (kept.splits, kept.forwards) == (1, 4)
    assert kept.report(Alone(), 0).splits == 1


def conditioning() -> dict[str, Tensor]:
    return {"context": torch.randn(1, 4, 64), "y": torch.randn(1, 32), "guidance": torch.tensor([3.5])}


def test_rows_that_cannot_be_shared_out_are_refused() -> None:
    request = harness.predict("r").model_copy(update={"branches": ["a", "b"]})
    with pytest.raises(InvalidRequestError, match="1 rows cannot be shared out among 2"):
        called(request, shipped_model(), account())
