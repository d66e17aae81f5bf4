from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from outboard.engine.sampling.branch import Branch, Side
from outboard.engine.sampling.call import Call
from outboard.engine.sampling.changes.order import Changes, changes_of
from outboard.engine.sampling.conditioning import Conditioning
from outboard.engine.sampling.flow import Flow
from outboard.engine.sampling.guidance import Guide, GuidedDenoiser, Sides, cfg_denoiser
from outboard.engine.sampling.predictor import Predictor
from outboard.protocol.errors import InvalidRequestError
from outboard.protocol.messages.base import Record
from outboard.protocol.messages.guidance import (
    Cfg,
    CfgNorm,
    CfgOverride,
    DualCfg,
    EpsilonScaling,
    NormCfg,
    PerpNeg,
    RescaleCfg,
    Tcfg,
)

POS, NEG = {"k": torch.tensor([[3.0]])}, {"k": torch.tensor([[1.0]])}
LONGER = {"k": torch.tensor([[1.0, 1.0]])}
X, SIGMA = torch.zeros(2, 1, 2, 2), torch.tensor(0.5)
P, N, M = 3.0, 1.0, 2.0


class Network:
    """Predicts each row's constant, and remembers whom it was asked for."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, ...]] = []

    def __call__(self, x: Tensor, sigma: Tensor, conditioning: Conditioning, call: Call) -> Tensor:
        assert len(x) == len(sigma)
        self.asked.append(call.branches)
        constant: Tensor = conditioning["k"]
        return x + constant.mean(1).reshape(-1, 1, 1, 1)


def side(name: str, value: float) -> Side:
    return (Branch(name, {"k": torch.full((2, 1), value)}),)


def guided(
    guidance: Any, *changes: Record, negative: bool = True, skip_at_one: bool = True
) -> tuple[GuidedDenoiser, Network]:
    network = Network()
    sides = Sides(side("p", P), side("n", N) if negative else None, side("m", M))
    made = changes_of(changes) if changes else Changes()
    guide = Guide(Predictor(network), sides, guidance, Flow(1.0), made, skip_at_one)
    return GuidedDenoiser(guide), network


def value(guidance: Any, *changes: Record, sigma: float = 0.5, **options: Any) -> float:
    x0 = guided(guidance, *changes, **options)[0](X, torch.tensor(sigma))
    assert float(x0.std()) == 0
    return float(x0.mean())


def asked(guidance: Any, *changes: Record, **options: Any) -> list[tuple[str, ...]]:
    denoiser, network = guided(guidance, *changes, **options)
    denoiser(X, SIGMA)
    return network.asked


@pytest.mark.parametrize("negative", [NEG, LONGER])
def test_guidance_extrapolates_from_negative_to_positive(negative: Conditioning) -> None:
    x0 = cfg_denoiser(Network(), POS, negative, cfg=4.0, rows=2)(X, SIGMA)
    assert torch.equal(x0, torch.full_like(X, 1.0 + (3.0 - 1.0) * 4.0))


def test_equal_shapes_share_one_call_negative_first_and_others_go_positive_first() -> None:
    for negative, options, expected in (
        (NEG, {}, [("negative", "positive")]),
        (LONGER, {}, [("positive",), ("negative",)]),
        (NEG, {"batched": False}, [("negative",), ("positive",)]),
    ):
        network = Network()
        denoiser = cfg_denoiser(network, POS, negative, cfg=4.0, rows=2, **options)
        denoiser(X, SIGMA)
        assert network.asked == expected
        assert denoiser.forwards == len(expected)


def test_cfg_one_asks_the_positive_alone_unless_told_otherwise() -> None:
    assert asked(Cfg()) == [("p",)]
    assert asked(Cfg(), negative=False) == [("p",)]
    assert asked(Cfg(), skip_at_one=False) == [("n", "p")]


def test_guidance_without_a_negative_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="cfg of 4"):
        guided(Cfg(scale=4.0), negative=False)
    with pytest.raises(InvalidRequestError, match="cfg of 2"):
        guided(Cfg(), CfgOverride(scale=2.0, start=1.0, end=0.0), negative=False)


def test_of_several_overrides_the_last_in_range_holds() -> None:
    changes = CfgOverride(scale=2.0, start=1.0, end=0.0), CfgOverride(scale=3.0, start=0.5, end=0.25)
    found = [value(Cfg(scale=5.0), *changes, sigma=sigma) for sigma in (0.6, 0.5, 0.25, 0.2)]
    assert found == [N + 2 * scale for scale in (2.0, 3.0, 3.0, 2.0)]


def test_an_override_to_one_leaves_the_negative_out() -> None:
    assert asked(Cfg(scale=5.0), CfgOverride(scale=1.0, start=0.6, end=0.4)) == [("p",)]


def test_dual_guidance_adds_two_differences() -> None:
    expected = N + (M - N) * 3.0 + (P - M) * 5.0
    assert value(DualCfg(scale=5.0, negative_scale=3.0)) == expected
    assert asked(DualCfg(scale=5.0, negative_scale=3.0)) == [("p", "m", "n")]


def test_nested_dual_guidance_guides_the_guided() -> None:
    inner = M + (P - M) * 5.0
    assert value(DualCfg(scale=5.0, negative_scale=3.0, nested=True)) == N + 3.0 * (inner - N)
    assert asked(DualCfg(scale=1.0, negative_scale=1.0, nested=True)) == [("p", "m", "n")]


def test_dual_guidance_leaves_out_what_makes_no_difference() -> None:
    assert asked(DualCfg(scale=5.0, negative_scale=1.0)) == [("p", "m")]
    assert value(DualCfg(scale=5.0, negative_scale=1.0)) == M + (P - M) * 5.0
    assert asked(DualCfg(scale=1.0, negative_scale=1.0)) == [("p",)]
    assert value(DualCfg(scale=1.0, negative_scale=1.0)) == P


def test_perpendicular_guidance_leaves_out_what_makes_no_difference() -> None:
    assert asked(PerpNeg(scale=5.0, negative_scale=1.0)) == [("m", "n", "p")]
    assert asked(PerpNeg(scale=5.0, negative_scale=0.0)) == [("m", "p")]
    assert asked(PerpNeg(scale=1.0, negative_scale=0.0)) == [("p",)]
    assert value(PerpNeg(scale=5.0, negative_scale=0.0)) == M + 5.0 * (P - M)


def test_changes_are_made_in_their_order_around_the_combination() -> None:
    halved, doubled = EpsilonScaling(factor=2.0), CfgNorm(strength=2.0)
    # Guided to 7; x is 0, so that the first halves, and the second cuts to the positive's 3 and doubles.
    assert value(Cfg(scale=3.0), halved, doubled) == 2.0 * P
    assert value(Cfg(scale=3.0), doubled, halved) == pytest.approx(P)
    assert value(Cfg(scale=3.0), NormCfg(strength=1.0), halved) == pytest.approx(P / 2)


def test_a_change_before_the_combination_needs_both_sides() -> None:
    assert value(Cfg(), Tcfg()) == P


def test_two_combinations_are_refused() -> None:
    with pytest.raises(InvalidRequestError, match="2 changes would combine"):
        guided(Cfg(scale=3.0), RescaleCfg(multiplier=0.5), NormCfg(strength=1.0))


@pytest.mark.parametrize(
    ("guidance", "change"),
    [
        (DualCfg(scale=5.0, negative_scale=3.0), Tcfg()),
        (DualCfg(scale=5.0, negative_scale=3.0), CfgOverride(scale=1.0, start=1.0, end=0.0)),
        (PerpNeg(scale=5.0, negative_scale=1.0), RescaleCfg(multiplier=0.5)),
    ],
)
def test_a_change_the_guidance_does_not_look_at_is_refused(guidance: Any, change: Record) -> None:
    with pytest.raises(InvalidRequestError, match="does not look at"):
        guided(guidance, change)
