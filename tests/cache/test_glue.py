from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import pytest
import torch

from cache.networks import conditioning, euler, latent, network, sigmas, timestep
from cache.test_isolation import STATIC, STEPS, around
from outboard.engine.cache.choice import Choice
from outboard.engine.cache.controller import install, installed, remove
from outboard.engine.cache.glue import Prepared, around_forwards, prepare, rows_of
from outboard.engine.models.model import Model
from outboard.protocol.errors import CancelledError, InvalidRequestError


@dataclass(frozen=True)
class Call:
    branches: tuple[str, ...]
    rows: int
    step: int
    sigma: float


@pytest.fixture
def model() -> Iterator[Model]:
    model = network("wan")
    yield model
    remove(model)


def loop(model: Model, run: str, schedule: list[float]) -> torch.Tensor:
    x, given = latent(model.family), conditioning(model.family)
    cache = install(model, STATIC)
    with around_forwards(cache, run, schedule) as (forward, tally):
        for index, (sigma, following) in enumerate(pairwise(schedule)):
            with forward(Call(("positive",), 1, index, sigma)):
                v = model.predict(x, timestep(model.family, sigma), given)
            x = x + (following - sigma) * v.float()
        assert tally is not None
        assert tally.rows_reused == 5
        with forward(Call(("positive",), 1, STEPS, schedule[-1])):
            model.predict(x, timestep(model.family, 0.0), given)
    assert cache.nbytes == 0
    return x


def test_rows_are_named_branch_by_branch() -> None:
    assert rows_of(Call(("b", "a"), 2, 0, 1.0)) == [("b", 0), ("b", 1), ("a", 0), ("a", 1)]


def test_a_loop_is_cached_and_forgotten(model: Model) -> None:
    x = loop(model, "run", sigmas(STEPS))
    remove(model)
    assert torch.equal(x, euler(model, STEPS, around=around(install(model, STATIC), "run")).latent)


def test_a_run_that_breaks_is_forgotten(model: Model) -> None:
    cache = install(model, STATIC)

    def loop() -> None:
        with around_forwards(cache, "run", sigmas(STEPS)) as (forward, _):
            with forward(Call(("positive",), 1, 0, 1.0)):
                model.predict(latent(model.family), timestep(model.family, 1.0), conditioning(model.family))
            assert cache.nbytes > 0
            raise CancelledError("taken back")

    with pytest.raises(CancelledError):
        loop()
    assert cache.nbytes == 0


def test_settings_that_do_not_fit_stop_a_run_before_it_begins(model: Model) -> None:
    cache = install(model, STATIC)
    with pytest.raises(InvalidRequestError, match="run has 4"), around_forwards(cache, "run", sigmas(4)):
        pass


def test_without_a_cache_a_forward_is_only_made() -> None:
    with around_forwards(None, "run", sigmas(4)) as (forward, tally), forward(Call((), 0, 0, 1.0)):
        assert tally is None


def prepared(
    model: Model, choice: Choice | None, sampler: str = "euler", *, forced: bool = False
) -> Prepared:
    return prepare(model, choice, sampler=sampler, options={}, steps=20, forced=forced)


def test_a_chosen_preset_is_on_the_model_once(model: Model) -> None:
    first, second = prepared(model, Choice("fast")), prepared(model, Choice("quality"))
    assert first.cache is second.cache is installed(model)
    assert first.settings is not None
    assert first.settings != second.settings
    assert len(first.settings.steps_computation_mask) == 20


def test_without_a_choice_nothing_is_put_on_the_model(model: Model) -> None:
    assert prepared(model, None).cache is None
    assert installed(model) is None


def test_a_sampler_with_fresh_noise_has_no_cache_unless_it_is_forced(model: Model) -> None:
    refused = prepared(model, Choice("fast"), "euler_ancestral")
    assert (refused.cache, installed(model)) == (None, None)
    assert "fresh noise" in refused.notes[0]
    assert prepared(model, Choice("fast"), "euler_ancestral", forced=True).cache is not None
