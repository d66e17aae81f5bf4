from __future__ import annotations

from dataclasses import FrozenInstanceError
from math import inf, nan
from typing import Any

import pytest

from outboard.engine.cache.plan import Plan
from outboard.engine.cache.settings import Settings
from outboard.protocol.errors import InvalidRequestError


@pytest.mark.parametrize(
    "wrong",
    [
        {"Fn_compute_blocks": 0},
        {"Bn_compute_blocks": -1},
        {"max_warmup_steps": -1},
        {"warmup_interval": 0},
        {"max_cached_steps": -2},
        {"max_continuous_cached_steps": -2},
        {"residual_diff_threshold": -0.1},
        {"residual_diff_threshold": nan},
        {"residual_diff_threshold": inf},
        {"max_accumulated_residual_diff_threshold": 0.0},
        {"taylorseer_order": 3},
        {"scm_preset": "quick"},
        {"steps_computation_policy": "sometimes"},
        {"steps_computation_policy": "static"},
        {"steps_computation_mask": (1, 2)},
        {"steps_computation_mask": (0, 1), "steps_computation_policy": "static"},
        {"steps_computation_mask": (1, 0), "scm_preset": "slow"},
        {"scm_compute_bins": (2, 2), "scm_cache_bins": (1,), "scm_preset": "slow"},
        {"scm_compute_bins": (1,), "scm_cache_bins": (1, 1)},
        {"scm_cache_bins": (1,)},
        {"scm_compute_bins": (2, 0), "scm_cache_bins": (1,)},
        {"skip_fn_on_static": True},
        {"skip_fn_on_static": True, "scm_preset": "fast"},
    ],
    ids=str,
)
def test_what_contradicts_itself_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequestError, match="Step cache"):
        Settings(**wrong)


@pytest.mark.parametrize(
    ("settings", "steps", "blocks", "complaint"),
    [
        (Settings(Fn_compute_blocks=3, Bn_compute_blocks=4), 28, 6, "none of the model's 6 blocks"),
        (Settings(Fn_compute_blocks=6), 28, 6, "none of the model's 6 blocks"),
        (Settings(steps_computation_mask=(1, 0, 1)), 4, 9, "for 3 steps, the run has 4"),
        (Settings(scm_compute_bins=(2, 1), scm_cache_bins=(1,)), 5, 9, "for 4 steps, the run has 5"),
        (Settings(), 0, 9, "0 steps"),
    ],
)
def test_what_does_not_fit_the_run_is_refused(
    settings: Settings, steps: int, blocks: int, complaint: str
) -> None:
    with pytest.raises(InvalidRequestError, match=complaint):
        Plan.of(settings, steps, blocks)


def test_settings_cannot_be_changed() -> None:
    with pytest.raises(FrozenInstanceError):
        Settings().Fn_compute_blocks = 2  # type: ignore[misc]


def test_settings_that_do_nothing_in_a_run_are_told() -> None:
    assert "mask is off" in Plan.of(Settings(Fn_compute_blocks=1, scm_preset="fast"), 7, 9).notes[0]
    assert "warm-up" in Plan.of(Settings(Fn_compute_blocks=1), 8, 9).notes[0]
    assert Plan.of(Settings(Fn_compute_blocks=1), 9, 9).notes == ()
