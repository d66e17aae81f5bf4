"""The plans fit the networks they are for."""

from __future__ import annotations

import re
from typing import Any

import pytest
from torch import nn

from models.tiny import CONFIGS
from outboard.engine.models.family import Family
from outboard.engine.models.registry import FAMILIES
from outboard.engine.parallel.families import PLANS
from outboard.engine.parallel.plans import parts
from outboard.protocol.errors import InternalError

NAMED = pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)


def build(family: Family) -> nn.Module:
    return family.build(CONFIGS[family.name])


@NAMED
def test_every_family_has_a_plan_all_of_whose_parts_exist(family: Family) -> None:
    module, plan = build(family), PLANS[family.transformer]
    config: Any = module.config
    assert config[plan.heads] == CONFIGS[family.name][plan.heads]
    sequence = plan.sequence
    patterns = [cut.part for cut in sequence.cuts]
    patterns += [mix.part for mix in sequence.mixes]
    patterns += [join.part for join in sequence.joins]
    tensor = plan.tensor
    patterns += [*tensor.columns, *tensor.rows, *filter(None, (tensor.norms, tensor.counted, tensor.rotary))]
    for pattern in patterns:
        assert list(parts(module, pattern))


@NAMED
def test_what_goes_into_attention_by_columns_comes_out_by_rows(family: Family) -> None:
    """Each block that has a layer cut one way has one cut the other way, or its sums would not be whole."""
    module, plan = build(family), PLANS[family.transformer]

    def blocks(patterns: Any) -> set[str]:
        names = (name for pattern in patterns for name, _ in parts(module, pattern))
        return {found[0] for name in names if (found := re.match(r"\w+\.\d+\.", name))}

    assert blocks(plan.tensor.columns) == blocks(plan.tensor.rows)


def test_a_part_that_is_not_there_is_an_error() -> None:
    with pytest.raises(InternalError, match="no part 'blocks'"):
        list(parts(nn.Linear(1, 1), "blocks"))
    assert not list(parts(nn.Linear(1, 1), "blocks", optional=True))


def test_last_is_the_last_of_a_list() -> None:
    module = nn.Sequential(nn.Sequential(nn.Identity(), nn.Identity()))
    assert [name for name, _ in parts(module, "0.LAST")] == ["0.1"]
