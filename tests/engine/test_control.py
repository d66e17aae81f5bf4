"""Residuals and skipped blocks through a whole engine: what crosses, and what it computes with them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

import harness
from outboard.engine.demo.assets import MODEL
from outboard.engine.demo.digits import prompt
from outboard.engine.models.loader import load
from outboard.engine.models.model import Model
from outboard.protocol.client import Client
from outboard.protocol.errors import InvalidRequestError
from outboard.protocol.messages.client import CloseRun
from outboard.protocol.messages.engine import Closed, Prediction
from outboard.protocol.shelf import Shelf
from outboard.protocol.torch import TorchSource, from_wire

RUN = "control"


@pytest.fixture(scope="module")
def model() -> Model:
    return load(MODEL, dtype=torch.float32, device=torch.device("cpu"))


@pytest.fixture
def shelf(client: Client) -> Iterator[Shelf]:
    opened = client.shelf() or pytest.fail("there is no shared memory")
    yield opened
    opened.close(reusable=True)


def expected(model: Model, **conditioning: Any) -> torch.Tensor:
    given = {**prompt(3), "guidance": torch.tensor([3.5]), **conditioning}
    return model.predict(harness.noise(), torch.tensor([1.0]), given)


def ask(client: Client, **conditioning: Any) -> torch.Tensor:
    request = harness.predict(RUN)
    reply = client.request(
        request.model_copy(update={"conditioning": {**request.conditioning, **conditioning}})
    )
    assert isinstance(reply, Prediction)
    return from_wire(reply.v).clone()


def controlled(client: Client, shelf: Shelf, residual: torch.Tensor) -> torch.Tensor:
    """The answer with the residual behind the first two blocks, once it was asked with what it holds."""
    shelf.begin()
    while True:
        wires = [shelf.place(TorchSource(residual)) for _ in range(2)]
        v = ask(client, control={"input": wires})
        if shelf.settle():
            return v


def bytes_in(client: Client) -> int:
    closed = client.request(CloseRun(run=RUN))
    assert isinstance(closed, Closed)
    assert closed.report is not None
    return closed.report.bytes_in


def test_an_unchanged_residual_crosses_once_and_a_changed_one_again(
    client: Client, shelf: Shelf, model: Model
) -> None:
    width: Any = model.module.config
    residual = torch.randn(1, 16, width.attention_head_dim * width.num_attention_heads) / 4
    ask(client)
    plain = bytes_in(client)
    first = expected(model, control={"input": [residual, residual]})
    assert not torch.allclose(first, expected(model))
    for _ in range(3):
        assert torch.allclose(controlled(client, shelf, residual), first, atol=1e-6)
    assert bytes_in(client) == 3 * plain + residual.nbytes
    residual.data.neg_()
    second = expected(model, control={"input": [residual, residual]})
    assert torch.allclose(controlled(client, shelf, residual), second, atol=1e-6)
    assert torch.allclose(controlled(client, shelf, residual), second, atol=1e-6)
    # The first of these three calls was in vain, and with what the engine had.
    assert bytes_in(client) == 3 * plain + residual.nbytes


def test_skipped_blocks_are_for_one_call(client: Client, model: Model) -> None:
    skip = {"double_block": [0], "single_block": [0, 99]}
    without = ask(client, skip_blocks=skip)
    assert torch.allclose(without, expected(model, skip_blocks=skip), atol=1e-6)
    assert not torch.allclose(without, ask(client))
    with pytest.raises(InvalidRequestError, match="middle_block"):
        ask(client, skip_blocks={"middle_block": [0]})
    assert torch.allclose(ask(client), expected(model), atol=1e-6)
