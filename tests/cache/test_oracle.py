"""The same decisions and the same latents as cache-dit 1.5.3, on one run at a time, which is all it can do.

FLUX.2 has two lists of blocks; cache-dit decides for each by itself, we once for both. Equal there are:
everything when there is only the first list, and, with both, which steps are computed when no distance is
measured.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterator
from typing import Any

import cache_dit
import pytest
from torch import nn

from cache.networks import BLOCKS, SIX, Trace, build, differ, euler, network
from outboard.engine.cache.controller import install, remove
from outboard.engine.cache.settings import Settings
from outboard.engine.models.model import Model

STEPS = 13
MASK = (1, 1, 1, 1, 0, 1, 0, 0, 1, 0, 0, 0, 1)
PLAIN: dict[str, Any] = {
    "Fn_compute_blocks": 1,
    "Bn_compute_blocks": 0,
    "max_warmup_steps": 4,
    "residual_diff_threshold": 0.2,
}
CASES: dict[str, dict[str, Any]] = {
    "threshold": {},
    "threshold, two blocks first": {"Fn_compute_blocks": 2},
    "always": {"residual_diff_threshold": 1.0},
    "never": {"residual_diff_threshold": 0.0},
    "static mask": {"steps_computation_mask": MASK, "steps_computation_policy": "static"},
    "dynamic mask": {"steps_computation_mask": MASK, "steps_computation_policy": "dynamic"},
    "TaylorSeer 1": {"taylorseer_order": 1},
    "TaylorSeer 1, static mask": {
        "taylorseer_order": 1,
        "steps_computation_mask": MASK,
        "steps_computation_policy": "static",
    },
    "last blocks": {"Bn_compute_blocks": 2},
    "last blocks, TaylorSeer 1": {"Bn_compute_blocks": 2, "taylorseer_order": 1},
    "last blocks, TaylorSeer 1 for the image alone": {
        "Bn_compute_blocks": 2,
        "taylorseer_order": 1,
        "enable_encoder_taylorseer": False,
    },
    "warm-up interval": {
        "warmup_interval": 2,
        "residual_diff_threshold": 1.0,
        "max_continuous_cached_steps": 2,
    },
    "so many": {"max_cached_steps": 3},
    "so many in a row": {"residual_diff_threshold": 0.5, "max_continuous_cached_steps": 1},
    "so much": {"max_accumulated_residual_diff_threshold": 0.6},
}


DOUBLE_ONLY = build("flux2", num_layers=BLOCKS, num_single_layers=1)
DOUBLE_ONLY.module.single_transformer_blocks = nn.ModuleList()


@pytest.fixture(autouse=True, scope="module")
def _quiet() -> None:
    for name in list(logging.root.manager.loggerDict):
        if name.startswith("cache_dit"):
            logging.getLogger(name).setLevel(logging.ERROR)


@pytest.fixture(params=SIX)
def model(request: pytest.FixtureRequest) -> Iterator[Model]:
    model = DOUBLE_ONLY if request.param == "flux2" else network(request.param)
    yield model
    remove(model)


def ours(model: Model, **changes: Any) -> Trace:
    step_cache = install(model, Settings(**(PLAIN | changes)))
    try:
        return euler(
            model,
            STEPS,
            around=lambda index, total, sigma: step_cache.step(
                run="one", rows=[("positive", 0)], index=index, total=total, sigma=sigma
            ),
        )
    finally:
        remove(model)


def theirs(model: Model, **changes: Any) -> Trace:
    """The same with cache-dit on a copy of the network, which it alters for good."""
    values = PLAIN | changes
    order, text_too = values.pop("taylorseer_order", 0), values.pop("enable_encoder_taylorseer", True)
    if mask := values.pop("steps_computation_mask", None):
        values["steps_computation_mask"] = list(mask)
    config = cache_dit.DBCacheConfig(num_inference_steps=STEPS, enable_separate_cfg=False, **values)
    seer = cache_dit.TaylorSeerCalibratorConfig(taylorseer_order=order, enable_encoder_calibrator=text_too)
    other = copy.copy(model)
    other.module = copy.deepcopy(model.module)
    target = (
        other.module
        if model is not DOUBLE_ONLY
        else cache_dit.BlockAdapter(
            transformer=other.module,
            blocks=other.module.get_submodule("transformer_blocks"),
            forward_pattern=cache_dit.ForwardPattern.Pattern_1,
        )
    )
    cache_dit.enable_cache(target, cache_config=config, calibrator_config=seer if order else None)
    return euler(other, STEPS)


@pytest.mark.parametrize("case", CASES)
def test_oracle_decides_and_draws_the_same(model: Model, case: str) -> None:
    mine, other = ours(model, **CASES[case]), theirs(model, **CASES[case])
    assert mine.blocks == other.blocks
    assert differ(mine.latent, other.latent) <= 1e-6


@pytest.mark.parametrize("case", ["always", "never", "static mask", "warm-up interval"])
def test_oracle_computes_the_same_steps_of_all_of_flux2(case: str) -> None:
    model = network("flux2")
    mine, other = ours(model, **CASES[case]), theirs(model, **CASES[case])
    assert [blocks == BLOCKS for blocks in mine.blocks] == [blocks == BLOCKS for blocks in other.blocks]
    assert sum(mine.blocks) <= sum(other.blocks)
