from __future__ import annotations

from collections.abc import Mapping
from time import sleep

import pytest
import torch

from outboard.engine.attention import choice
from outboard.engine.attention.choice import Choice, fastest
from outboard.engine.attention.kernels import Kernel

TOKENS = torch.zeros(1, 2, 4, 8)


class Timed:
    """A kernel that takes a while, and counts."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.calls = 0

    def __call__(
        self, query: torch.Tensor, _key: torch.Tensor, _value: torch.Tensor, _scale: float | None
    ) -> torch.Tensor:
        self.calls += 1
        sleep(self.seconds)
        return query


def refuse(
    _query: torch.Tensor, _key: torch.Tensor, _value: torch.Tensor, _scale: float | None
) -> torch.Tensor:
    raise RuntimeError("no such kernel for this width")


def winner(kernels: Mapping[str, Kernel]) -> str:
    return fastest(kernels, TOKENS, TOKENS, TOKENS)


def test_the_fastest_wins() -> None:
    assert winner({"slow": Timed(0.02), "quick": Timed(0.001)}) == "quick"


def test_the_preferred_one_stays_when_there_is_little_between_them() -> None:
    assert winner({"preferred": Timed(0.0100), "alike": Timed(0.0095)}) == "preferred"


def test_one_that_refuses_is_passed_over() -> None:
    assert winner({"preferred": refuse, "other": Timed(0.001)}) == "other"
    assert winner({"preferred": Timed(0.001), "other": refuse}) == "preferred"


def test_one_without_hope_is_only_tried() -> None:
    hopeless = Timed(0.05)
    assert winner({"preferred": Timed(0.001), "hopeless": hopeless}) == "preferred"
    assert hopeless.calls == 2


def test_each_size_is_measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    quick = Timed(0.001)
    monkeypatch.setattr(choice, "kernels_of", lambda _: {"slow": Timed(0.01), "quick": quick})
    chosen = Choice()
    assert chosen.kernel(TOKENS, TOKENS, TOKENS) is quick
    measured = quick.calls
    assert chosen.kernel(TOKENS + 1, TOKENS, TOKENS) is quick
    assert quick.calls == measured
    assert list(chosen.names.values()) == ["quick"]
    for other in (TOKENS.bfloat16(), TOKENS[:, :1], torch.zeros(1, 2, 400, 8), torch.zeros(1, 2, 4, 16)):
        chosen.kernel(other, other, other)
    assert len(chosen.names) == 5
