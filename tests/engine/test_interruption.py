"""A forward that is taken back between two blocks."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from outboard.engine.rank.interruption import interruptible
from outboard.protocol.errors import CancelledError


class Network(nn.Module):
    """Three blocks, which write down that they ran."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Identity() for _ in range(3))
        self.ran: list[int] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for index, block in enumerate(self.blocks):
            x = block(x)
            self.ran.append(index)
        return x


def test_a_forward_ends_before_the_next_block() -> None:
    network = Network()

    def check() -> None:
        if network.ran == [0]:
            raise CancelledError("The request was cancelled.")

    with pytest.raises(CancelledError), interruptible(network, check):
        network(torch.ones(1))
    assert network.ran == [0]


def test_nothing_stays_behind() -> None:
    network, checks = Network(), []
    with interruptible(network, lambda: checks.append(len(network.ran))):
        network(torch.ones(1))
    assert checks == [0, 1, 2]
    network(torch.ones(1))
    assert len(checks) == 3
