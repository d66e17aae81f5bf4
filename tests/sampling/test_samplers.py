from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from outboard.engine.sampling.brownian import BrownianNoise
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
        ("lms", {"order": 2.5}),
        ("lms", {"order": True}),
        ("sa_solver", {"use_pece": 1}),
    ],
)
def test_a_value_of_the_wrong_kind_is_refused(name: str, options: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequestError, match=next(iter(options))):
        find_sampler(name, options)


@pytest.mark.parametrize(("name", "options"), [("lms", {"order": 2}), ("sa_solver", {"use_pece": True})])
def test_whole_numbers_and_truths_are_kinds_of_their_own(name: str, options: dict[str, Any]) -> None:
    assert find_sampler(name, options) is SAMPLERS[name]


@pytest.mark.parametrize(("name", "device"), [("dpmpp_sde", "cpu"), ("dpmpp_sde_gpu", "cuda")])
def test_a_gpu_twin_differs_in_where_its_path_is_drawn(
    name: str, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    sigmas = torch.tensor([0.9, 0.5, 0.0])
    source = SAMPLERS[name].noise_source(1, torch.zeros(1, 1, 2, 2), sigmas, "cuda")
    assert isinstance(source, BrownianNoise)
    if device == "cpu":
        assert source.between(sigmas[0], sigmas[1]).any()
    else:
        with pytest.raises(UnsupportedRequestError, match="CUDA"):
            source.between(sigmas[0], sigmas[1])
