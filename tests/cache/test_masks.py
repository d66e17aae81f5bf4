from __future__ import annotations

from itertools import groupby

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outboard.engine.cache.masks import FEWEST_STEPS, SHARES, from_bins, mask_of, spread
from outboard.engine.cache.settings import Settings
from outboard.protocol.errors import InvalidRequestError


def stretches(mask: tuple[int, ...], kind: int) -> list[int]:
    return [len(list(group)) for value, group in groupby(mask) if value == kind]


@settings(deadline=None)
@given(steps=st.integers(1, 200), share=st.sampled_from(sorted(SHARES.values())))
def test_any_number_of_steps_has_a_mask_of_the_share_and_spread(steps: int, share: float) -> None:
    mask = spread(share, steps)
    assert len(mask) == steps
    assert sum(mask) == max(1, int(share * steps + 0.5))
    assert mask[0] == 1
    skipped = stretches(mask, 0)
    if sum(mask) > 1:
        assert mask[-1] == 1
        assert max(skipped, default=0) <= -(-(steps - sum(mask)) // max(1, sum(mask) - 2)) or sum(mask) == 2
        assert max(skipped, default=0) - min(skipped, default=0) <= 1


@pytest.mark.parametrize("steps", [8, 16, 20, 28, 50])
@pytest.mark.parametrize(("name", "share"), SHARES.items())
def test_computed_steps_do_not_clump(name: str, share: float, steps: int) -> None:
    mask = spread(share, steps)
    assert abs(sum(mask) / steps - share) <= 0.51 / steps
    assert max(stretches(mask, 0)) <= -(-1 // share) + 2


def test_one_step_is_computed() -> None:
    assert [spread(share, 1) for share in SHARES.values()] == [(1,)] * 4


def test_a_named_mask_is_off_below_so_many_steps() -> None:
    fast = Settings(scm_preset="fast")
    assert mask_of(fast, FEWEST_STEPS - 1) is None
    assert mask_of(fast, FEWEST_STEPS) == spread(0.35, FEWEST_STEPS)


def test_published_bins_are_their_stretches() -> None:
    mask = from_bins((8, 3, 3, 2, 2), (1, 2, 2, 2, 3), 28)
    assert stretches(mask, 1) == [8, 3, 3, 2, 2]
    assert stretches(mask, 0) == [1, 2, 2, 2, 3]


def test_bins_for_another_number_of_steps_are_refused() -> None:
    with pytest.raises(InvalidRequestError, match="for 28 steps, the run has 20"):
        from_bins((8, 3, 3, 2, 2), (1, 2, 2, 2, 3), 20)
