from __future__ import annotations

import pytest

from outboard.engine.cache.choice import Choice
from outboard.engine.cache.plan import Plan
from outboard.engine.cache.presets import PRESETS, TABLE, preset
from outboard.engine.models.registry import FAMILIES
from outboard.protocol.errors import InvalidRequestError


@pytest.mark.parametrize("name", PRESETS)
@pytest.mark.parametrize("steps", [*range(1, 31), 50, 100])
def test_every_preset_fits_any_number_of_steps(name: str, steps: int) -> None:
    for family in ("", *(family.name for family in FAMILIES)):
        plan = Plan.of(preset(name, family, steps), steps, 19)
        assert plan.need(0) is not None


def test_the_table_names_families_that_exist() -> None:
    assert TABLE.keys() <= {"", *(family.name for family in FAMILIES)}


def test_an_unknown_preset_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="ultra"):
        preset("ultra", "", 28)
    with pytest.raises(InvalidRequestError, match="ultra"):
        Choice("ultra")


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_can_be_changed_in_parts(name: str) -> None:
    changed = Choice(name, {"steps_computation_policy": "dynamic", "residual_diff_threshold": 0.5}).settings()
    assert changed.residual_diff_threshold == 0.5
    assert not changed.static
    heard = Choice(name, {"residual_diff_threshold": 0.5}).settings()
    assert not heard.static
    bare = Choice(name, {"scm_preset": "none", "taylorseer_order": 2}).settings()
    assert not bare.masked
    assert bare.taylorseer_order == 2
    assert Choice(name, {"enable_taylorseer": False}).settings().taylorseer_order == 0
