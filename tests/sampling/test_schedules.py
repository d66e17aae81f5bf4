from __future__ import annotations

import pytest
import torch

from outboard.engine.sampling.schedules import discrete_flow_table, flux_table, simple, simple_sigmas

TABLE = discrete_flow_table(3.0)


@pytest.mark.parametrize(("table", "entries"), [(TABLE, 1000), (flux_table(1.15), 10000)])
def test_a_table_rises_to_one(table: torch.Tensor, entries: int) -> None:
    assert len(table) == entries
    assert bool((table.diff() > 0).all())
    assert float(table[-1]) == 1.0


def test_simple_falls_from_the_top_of_the_table_to_zero() -> None:
    sigmas = simple(TABLE, 7)
    assert len(sigmas) == 8
    assert bool((sigmas.diff() < 0).all())
    assert (float(sigmas[0]), float(sigmas[-1])) == (1.0, 0.0)


def test_denoise_keeps_the_end_of_a_longer_schedule() -> None:
    assert torch.equal(simple_sigmas(TABLE, 4, denoise=0.5), simple(TABLE, 8)[-5:])


def test_no_denoise_leaves_nothing_to_sample() -> None:
    assert simple_sigmas(TABLE, 4, denoise=0.0).numel() == 0


def test_the_penultimate_sigma_is_dropped_without_losing_a_step() -> None:
    sigmas = simple_sigmas(TABLE, 4, drop_penultimate=True)
    assert sigmas.tolist() == [*simple(TABLE, 5)[:4].tolist(), 0.0]
