from __future__ import annotations

import pytest
import torch

from outboard.engine.cache.rows import put, row, take
from outboard.protocol.errors import InternalError

BATCH = torch.arange(12).reshape(4, 3)


@pytest.mark.parametrize("rows", [[0], [3], [1, 2], [0, 2, 3], [0, 3]])
def test_what_is_taken_goes_back_where_it_was(rows: list[int]) -> None:
    part = take(BATCH, rows, 4)
    assert torch.equal(part, BATCH[rows])
    whole = put(torch.zeros_like(BATCH), part, rows)
    assert torch.equal(whole[rows], part)
    others = [number for number in range(4) if number not in rows]
    assert not whole[others].any()


def test_rows_may_lie_in_another_dimension() -> None:
    assert torch.equal(take(BATCH, [0, 2], 3, dim=1), BATCH[:, [0, 2]])
    assert torch.equal(row(BATCH, 1, dim=1), BATCH[:, 1:2])


def test_containers_are_taken_apart_and_the_rest_is_left() -> None:
    value = {"mask": BATCH, "pair": (BATCH, [BATCH]), "scale": 2.0, "none": None, "scalar": torch.tensor(1.0)}
    part = take(value, [1], 4)
    assert part["pair"][0].shape == part["pair"][1][0].shape == part["mask"].shape == (1, 3)
    assert (part["scale"], part["none"], float(part["scalar"])) == (2.0, None, 1.0)


def test_one_for_all_serves_all_and_several_batches_keep_their_order() -> None:
    assert torch.equal(take(BATCH[:1], [0, 2], 4), BATCH[:1])
    assert torch.equal(take(BATCH, [1], 2), BATCH[[1, 3]])


def test_what_belongs_to_no_row_is_refused() -> None:
    with pytest.raises(InternalError, match="4 entries"):
        take(BATCH, [0], 3)
