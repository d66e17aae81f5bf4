from __future__ import annotations

import math
from typing import Any

import pytest

from outboard.engine.sampling.samplers import SAMPLERS, find_sampler
from outboard.protocol.errors import InvalidRequestError, UnsupportedRequestError


def test_an_unknown_sampler_is_refused_by_name() -> None:
    with pytest.raises(UnsupportedRequestError, match="'euler_b'"):
        find_sampler("euler_b", {})


@pytest.mark.parametrize("name", SAMPLERS)
def test_an_unknown_option_is_refused_by_name(name: str) -> None:
    with pytest.raises(UnsupportedRequestError, match="'colour'"):
        find_sampler(name, {"colour": 1.0})


@pytest.mark.parametrize("name", SAMPLERS)
def test_every_sampler_takes_its_own_defaults(name: str) -> None:
    assert find_sampler(name, SAMPLERS[name].options) is SAMPLERS[name]


@pytest.mark.parametrize("option", ["callback", "noise", "flow"])
def test_what_the_loop_supplies_is_not_an_option(option: str) -> None:
    with pytest.raises(UnsupportedRequestError):
        find_sampler("euler", {option: 1.0})


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("euler", {"s_churn": "high"}),
        ("euler", {"s_churn": None}),
        ("euler", {"s_churn": True}),
        ("euler", {"s_churn": math.nan}),
        ("uni_pc", {"variant": 2}),
    ],
)
def test_a_value_of_the_wrong_kind_is_refused(name: str, options: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequestError, match=next(iter(options))):
        find_sampler(name, options)
