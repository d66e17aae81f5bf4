from __future__ import annotations

import pytest

from outboard.engine.cache.decision import Counters, settle
from outboard.engine.cache.plan import Need, Plan
from outboard.engine.cache.settings import Policy, Settings


def test_the_warm_up_computes_every_so_many_steps() -> None:
    plan = Plan.of(Settings(Fn_compute_blocks=1, max_warmup_steps=5, warmup_interval=2), 8, 4)
    needs = [plan.need(step) for step in range(8)]
    assert needs == [Need.COMPUTE, Need.COMPARE] * 2 + [Need.COMPUTE] + [Need.COMPARE] * 3


@pytest.mark.parametrize(("policy", "need"), [("static", Need.REUSE), ("dynamic", Need.COMPARE)])
def test_the_policy_says_what_a_zero_means(policy: Policy, need: Need) -> None:
    settings = Settings(
        Fn_compute_blocks=1, steps_computation_mask=(1, 0, 1), steps_computation_policy=policy
    )
    plan = Plan.of(settings, 3, 4)
    assert [plan.need(step) for step in range(3)] == [Need.COMPUTE, need, Need.COMPUTE]


def test_a_branch_that_sat_out_a_computed_step_is_told() -> None:
    plan = Plan.of(Settings(Fn_compute_blocks=1, steps_computation_mask=(1, 0, 1, 0, 0)), 5, 4)
    assert not plan.missed(0.0, 1)
    assert not plan.missed(2.0, 4)
    assert plan.missed(0.0, 3)


@pytest.mark.parametrize(
    ("settings", "counters", "need"),
    [
        (Settings(), Counters(cached=99, continuous=99), Need.COMPARE),
        (Settings(max_cached_steps=2), Counters(cached=2), Need.COMPUTE),
        (Settings(max_cached_steps=2), Counters(cached=1), Need.COMPARE),
        (Settings(max_cached_steps=0), Counters(), Need.COMPUTE),
        (Settings(max_continuous_cached_steps=2), Counters(continuous=2), Need.COMPUTE),
        (Settings(max_accumulated_residual_diff_threshold=0.5), Counters(accumulated=0.5), Need.COMPUTE),
        (Settings(residual_diff_threshold=0.0), Counters(), Need.COMPUTE),
        (Settings(residual_diff_threshold=1.0), Counters(), Need.REUSE),
        (Settings(residual_diff_threshold=1.0, max_cached_steps=0), Counters(), Need.COMPUTE),
    ],
)
def test_limits_come_before_the_threshold(settings: Settings, counters: Counters, need: Need) -> None:
    assert settle(Need.COMPARE, counters, settings) is need
    assert settle(Need.REUSE, counters, settings) is Need.REUSE


def test_two_calls_at_one_level_are_one_skipped_step() -> None:
    counters = Counters().after(reused=True, level=3.0, difference=0.1)
    again = counters.after(reused=True, level=3.0, difference=0.1)
    assert (again.cached, again.continuous) == (1, 1)
    assert again.accumulated == pytest.approx(0.2)
    assert again.after(reused=True, level=4.0).continuous == 2
    assert again.after(reused=False, level=4.0).continuous == 0
