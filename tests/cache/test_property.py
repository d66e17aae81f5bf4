"""Whatever runs, branches, sizes and failures are interleaved: each run draws what it draws alone."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import pytest
import torch
from hypothesis import HealthCheck, given
from hypothesis import settings as configured
from hypothesis import strategies as st
from torch import Tensor

from cache.networks import blocks_of, network
from cache.test_isolation import DYNAMIC, STATIC, Walker, around, failing
from outboard.engine.cache.controller import install, remove
from outboard.engine.cache.settings import Settings
from outboard.engine.models.model import Model

STEPS = 10
SETTINGS = (DYNAMIC, STATIC)
BROKEN, DROPPED = -1, -2


@pytest.fixture
def model() -> Iterator[Model]:
    model = network("ernie_image")
    yield model
    remove(model)


@cache
def alone(number: int, branch: str, seed: int, scale: int) -> tuple[Tensor, ...]:
    """The latent after each step of a run by itself."""
    model = network("ernie_image")
    try:
        walker = Walker(model, around(install(model, SETTINGS[number]), "alone"), seed=seed, scale=scale)
        latents = []
        for _ in range(STEPS):
            walker()
            latents.append(walker.x)
    finally:
        remove(model)
    return tuple(latents)


#: Whose turn it is, and whether the forward breaks in some block or the run is taken back and begun again.
TURNS = st.lists(
    st.tuples(st.integers(0, 3), st.sampled_from([None, None, None, 0, 1, 3, 5, DROPPED])), max_size=36
)
RUNS = st.lists(
    st.tuples(
        st.sampled_from(["a", "b"]),
        st.sampled_from(["positive", "negative"]),
        st.integers(0, 2),
        st.integers(1, 2),
    ),
    min_size=4,
    max_size=4,
    unique_by=lambda run: run[:2],
)


@configured(deadline=None, max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(number=st.integers(0, 1), runs=RUNS, turns=TURNS)
def test_interleaved_runs_equal_solo_runs(
    model: Model, number: int, runs: list[tuple[str, str, int, int]], turns: list[tuple[int, int | None]]
) -> None:
    remove(model)
    expected = [alone(number, *run[1:]) for run in runs]
    chosen: Settings = SETTINGS[number]
    step_cache = install(model, chosen)

    def begin(run: tuple[str, str, int, int]) -> Walker:
        name, branch, seed, scale = run
        return Walker(model, around(step_cache, name, rows=[(branch, 0)]), seed=seed, scale=scale)

    walkers = [begin(run) for run in runs]
    for whose, what in turns:
        walker = walkers[whose]
        if what == DROPPED:
            name = runs[whose][0]
            step_cache.drop(name)
            walkers = [begin(run) if run[0] == name else old for run, old in zip(runs, walkers, strict=True)]
        elif walker.index < STEPS and what is None:
            walker()
            torch.testing.assert_close(walker.x, expected[whose][walker.index - 1], rtol=0, atol=0)
        elif walker.index < STEPS and what is not None:
            with failing(blocks_of(model.module)[what]), pytest.raises(RuntimeError, match="broken"):
                walker()
    for name in ("a", "b"):
        step_cache.drop(name)
    assert step_cache.nbytes == 0
