"""Parts of attention merged exactly."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from models.tiny import differ, noise
from outboard.engine.parallel.ring import attend, attend_plainly, merge

QUERY, KEY, VALUE = noise(2, 3, 7, 8), noise(2, 3, 11, 8), noise(2, 3, 11, 8) * 2


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("cut", [1, 5, 10])
def test_two_parts_are_the_whole(cut: int, masked: bool) -> None:
    mask = noise(2, 1, 1, 11) > -0.3 if masked else None
    parts = [
        attend(QUERY, KEY[:, :, keys], VALUE[:, :, keys], None if mask is None else mask[..., keys], None)
        for keys in (slice(None, cut), slice(cut, None))
    ]
    whole = scaled_dot_product_attention(QUERY, KEY, VALUE, mask)
    assert differ(merge(*parts)[0], whole) < 1e-6


def test_additive_masks_count() -> None:
    bias = noise(1, 1, 7, 11)
    output, _ = attend(QUERY, KEY, VALUE, bias, None)
    assert differ(output, scaled_dot_product_attention(QUERY, KEY, VALUE, bias)) < 1e-6


def test_a_part_that_may_not_be_seen_adds_nothing() -> None:
    seen = attend(QUERY, KEY, VALUE, None, None)
    hidden = attend(QUERY, KEY, VALUE * 1e6, torch.zeros(1, 1, 1, 11, dtype=torch.bool), None)
    for merged in (merge(seen, hidden), merge(hidden, seen)):
        assert torch.equal(merged[0], seen[0])
        assert torch.equal(merged[1], seen[1])
    assert not merge(hidden, hidden)[0].any()


def test_the_fused_kernel_and_the_definition_agree() -> None:
    fused, plain = attend(QUERY, KEY, VALUE, None, 0.3), attend_plainly(QUERY, KEY, VALUE, None, 0.3)
    assert differ(fused[0], plain[0]) < 1e-6
    assert differ(fused[1], plain[1]) < 1e-6
