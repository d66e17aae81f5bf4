"""Runs with more than one conditioning on a side, and what does not fit together."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import harness
from outboard.engine.demo.draw import shipped_model
from outboard.engine.rank.blobs import BlobStore
from outboard.engine.rank.peers import Alone
from outboard.engine.rank.run import Outcome, prepare_loop
from outboard.protocol.errors import InvalidRequestError, MissingBlobError
from outboard.protocol.messages.common import Area, Branch, Region
from outboard.protocol.messages.guidance import Apg, Cfg, DualCfg, Momentum, PerpNegCfg, RescaleCfg
from outboard.protocol.torch import from_wire, to_wire
from outboard.protocol.values import Blob


def outcome(**changes: Any) -> Outcome:
    run = harness.run(3, **changes)
    return prepare_loop(run, shipped_model(), BlobStore(0), check=lambda: None, tell=lambda _: None).sample(
        Alone()
    )


def branch(digit: int, **changes: Any) -> Branch:
    return harness.branch(digit).model_copy(update=changes)


def test_the_same_twice_is_the_same_once() -> None:
    once = outcome(positive=[branch(3)])
    twice = outcome(positive=[branch(3), branch(3, id="again", strength=0.3)])
    assert torch.allclose(once.latent, twice.latent, rtol=0, atol=1e-5)
    assert once.forwards == twice.forwards == 3


def test_each_half_has_its_own_conditioning() -> None:
    left = Area(size=[8, 4], offset=[0, 0])
    mask = Region(mask=to_wire(torch.ones(1, 8, 8)))
    halves = outcome(
        positive=[
            branch(3, area=left, region=mask),
            branch(5, area=Area(size=[8, 4], offset=[0, 4]), region=mask),
        ]
    )
    alone = outcome(positive=[branch(3, area=left, region=mask)])
    assert torch.allclose(halves.latent[..., :4], alone.latent[..., :4], rtol=0, atol=1e-5)
    assert float((halves.latent[..., 4:] - alone.latent[..., 4:]).abs().max()) > 0.1


def test_a_middle_and_an_empty_are_sides_too() -> None:
    dual = outcome(
        guidance=DualCfg(scale=1.0, negative_scale=2.0, middle=[branch(3, id="m")]),
        positive=[branch(3)],
        negative=[branch(5, id="n")],
    )
    plain = outcome(cfg=2.0, positive=[branch(3)], negative=[branch(5)])
    assert torch.allclose(dual.latent, plain.latent, rtol=0, atol=1e-4)
    assert dual.forwards == plain.forwards


def test_momentum_goes_on_where_it_was_left() -> None:
    sigmas = torch.linspace(1, 0, 5)
    sides = {"positive": [branch(3)], "negative": [branch(5)], "guidance": Cfg(scale=3.0)}

    def part(start: int, end: int, latent: torch.Tensor, state: Momentum) -> Outcome:
        first = start == 0
        noise = harness.noise() if first else torch.zeros(1, 16, 8, 8)
        change = Apg(eta=0.5, norm_threshold=0.0, momentum=-0.5, state=state)
        levels = to_wire(sigmas[start : end + 1].contiguous())
        fields = {"sigmas": levels, "noise": to_wire(noise), "latent": to_wire(latent), "changes": [change]}
        return outcome(**sides, **fields)

    zeros = torch.zeros(1, 16, 8, 8)
    whole = part(0, 4, zeros, Momentum())
    half = part(0, 2, zeros, Momentum())
    on, anew = (part(2, 4, half.latent, state) for state in (half.momenta[0], Momentum()))
    assert torch.allclose(on.latent, whole.latent, rtol=0, atol=1e-4)
    assert float((anew.latent - whole.latent).abs().max()) > 1e-3
    assert half.momenta[0].average is not None
    assert from_wire(half.momenta[0].average).shape == (1, 16, 8, 8)
    assert half.momenta[0].sigma == 0.75


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"positive": [branch(3), branch(3)]}, "the same id"),
        ({"positive": [branch(3, area=Area(size=[8, 4], offset=[0, 5]))]}, "outside a latent"),
        ({"positive": [branch(3, area=Area(size=[4], offset=[0]))]}, "other dimensions"),
        (
            {"positive": [branch(3, fallback=True, area=Area(size=[8, 4], offset=[0, 0]))]},
            "cannot have an area",
        ),
        (
            {"positive": [branch(3, region=Region(mask=to_wire(torch.ones(1, 4, 8))))]},
            "does not fit a latent",
        ),
        ({"changes": [RescaleCfg(multiplier=1.0), PerpNegCfg(negative_scale=1.0, empty=[])]}, "2 changes"),
        (
            {
                "changes": [
                    Apg(
                        eta=1.0,
                        norm_threshold=1.0,
                        momentum=0.5,
                        state=Momentum(average=to_wire(torch.ones(1, 16, 4, 4)), sigma=1.0),
                    )
                ]
            },
            "running average",
        ),
    ],
)
def test_what_does_not_fit_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        outcome(**changes)


def test_all_missing_blobs_are_named_at_once() -> None:
    digests = ["0" * 32, "1" * 32]
    sides = [[branch(3, id=name, conditioning={"context": Blob(name * 32)})] for name in ("0", "1")]
    with pytest.raises(MissingBlobError) as caught:
        outcome(positive=sides[0], negative=sides[1])
    assert sorted(caught.value.details["digests"].split()) == digests
