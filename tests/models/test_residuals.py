"""ComfyUI's ragged lists of residuals as one per block, copied only where they must be longer."""

from __future__ import annotations

import torch

from outboard.engine.models.residuals import per_block

TOKENS = torch.zeros(1, 6, 4)


def test_a_residual_that_fits_is_taken_as_it_is() -> None:
    whole, part = torch.ones(1, 6, 4), torch.ones(1, 2, 4)
    found = per_block([whole, None, part], 4, TOKENS)
    assert found is not None
    assert found[0] is whole
    assert (found[1].shape, found[3].shape) == ((), ())
    assert torch.equal(found[2][:, :2], part)
    assert found[2].shape == TOKENS.shape
    assert not found[2][:, 2:].any()


def test_one_residual_for_several_blocks_stays_one() -> None:
    part = torch.ones(1, 2, 4)
    found = per_block([part, part], 2, TOKENS)
    assert found is not None
    assert found[0] is found[1]


def test_nothing_to_add_is_nothing() -> None:
    assert per_block(None, 2, TOKENS) is None
    assert per_block([None, None, torch.ones(1, 6, 4)], 2, TOKENS) is None
