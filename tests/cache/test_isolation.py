"""No run, branch, row, shape, failure or thread ever sees what another has left behind.

Each test is a hazard that was measured in cache-dit or reported by users of step caches; what must come out
is what the run gives when it is alone.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from cache.networks import (
    Trace,
    blocks_of,
    build,
    conditioning,
    differ,
    euler,
    latent,
    network,
    sigmas,
    timestep,
)
from outboard.engine.cache.controller import StepCache, install, remove
from outboard.engine.cache.settings import Settings
from outboard.engine.models.model import Model
from outboard.protocol.errors import CancelledError, InternalError

STEPS = 10
DYNAMIC = Settings(Fn_compute_blocks=1, max_warmup_steps=3, residual_diff_threshold=0.3)
STATIC = Settings(
    Fn_compute_blocks=1,
    steps_computation_mask=(1, 1, 1, 0, 0, 1, 0, 0, 1, 0),
    steps_computation_policy="static",
    taylorseer_order=1,
)
BOTH = pytest.mark.parametrize("settings", [DYNAMIC, STATIC], ids=["dynamic", "static"])
Around = Callable[[int, int, float], AbstractContextManager[None]]


@pytest.fixture
def model() -> Iterator[Model]:
    model = network("qwen_image")
    yield model
    remove(model)


def around(cache: StepCache, run: str, **more: Any) -> Around:
    rows = more.pop("rows", [("positive", 0)])
    return lambda index, total, sigma: cache.step(
        run=run, rows=rows, index=index, total=total, sigma=sigma, **more
    )


def alone(model: Model, settings: Settings, **run: Any) -> Trace:
    """A run on a cache of its own."""
    remove(model)
    try:
        return euler(model, STEPS, around=around(install(model, settings), "alone"), **run)
    finally:
        remove(model)


def check(trace: Trace, expected: Trace) -> None:
    assert trace.blocks == expected.blocks
    assert differ(trace.latent, expected.latent) < 1e-6


class Walker:
    """A run that is taken one step at a time."""

    def __init__(
        self, model: Model, enter: Around, *, steps: int = STEPS, seed: int = 0, scale: int = 1
    ) -> None:
        self.model, self._enter, self._steps = model, enter, steps
        self._given = conditioning(model.family, seed=seed)
        self.x = latent(model.family, seed=seed, scale=scale)
        self.index = 0

    def __call__(self) -> None:
        schedule = sigmas(self._steps)
        sigma, following = schedule[self.index : self.index + 2]
        with self._enter(self.index, self._steps, sigma):
            v = self.model.predict(self.x, timestep(self.model.family, sigma), self._given)
        self.x = self.x + (following - sigma) * v.float()
        self.index += 1


@BOTH
def test_a_cached_run_is_faster_and_near(model: Model, settings: Settings) -> None:
    cached, full = alone(model, settings), euler(model, STEPS)
    assert sum(cached.blocks) < 0.8 * sum(full.blocks)
    assert 0 < differ(cached.latent, full.latent) < 0.15


@BOTH
def test_the_first_forward_of_a_run_is_not_served_by_the_last_run(model: Model, settings: Settings) -> None:
    expected = alone(model, settings, seed=1)
    cache = install(model, settings)
    euler(model, STEPS, around=around(cache, "first"))
    check(euler(model, STEPS, seed=1, around=around(cache, "second")), expected)


@BOTH
@pytest.mark.parametrize("scales", [(1, 1), (1, 2)], ids=["one size", "two sizes"])
def test_interleaved_users_draw_what_each_would_alone(
    model: Model, settings: Settings, scales: tuple[int, int]
) -> None:
    expected = [
        alone(model, settings, seed=seed, x=latent(model.family, seed=seed, scale=scale))
        for seed, scale in enumerate(scales)
    ]
    cache = install(model, settings)
    walkers = [
        Walker(model, around(cache, f"user {seed}"), seed=seed, scale=scale)
        for seed, scale in enumerate(scales)
    ]
    for _ in range(STEPS):
        for walker in walkers:
            walker()
    for walker, trace in zip(walkers, expected, strict=True):
        assert torch.equal(walker.x, trace.latent)


@BOTH
def test_an_aborted_run_leaves_nothing_for_the_next(model: Model, settings: Settings) -> None:
    expected = alone(model, settings)
    cache = install(model, settings)
    walker = Walker(model, around(cache, "run"), seed=1)
    for _ in range(6):
        walker()
    cache.drop("run")
    assert cache.nbytes == 0
    check(euler(model, STEPS, around=around(cache, "run")), expected)


@BOTH
@pytest.mark.parametrize("block", [0, 1, 4, 5])
def test_a_forward_that_failed_did_not_happen(model: Model, settings: Settings, block: int) -> None:
    expected = alone(model, settings)
    cache = install(model, settings)
    walker = Walker(model, around(cache, "run"))
    for index in range(STEPS):
        if index in (0, 2, 5, 8):
            with failing(blocks_of(model.module)[block]), pytest.raises(RuntimeError, match="broken"):
                walker()
        walker()
    assert torch.equal(walker.x, expected.latent)


class failing(AbstractContextManager["failing"]):  # noqa: N801 - reads as what it does
    """Within, a part raises when it is called."""

    def __init__(self, part: nn.Module) -> None:
        self._part = part

    def __enter__(self) -> failing:
        self._handle = self._part.register_forward_pre_hook(self._fail)
        return self

    def __exit__(self, *exception: object) -> None:
        self._handle.remove()

    @staticmethod
    def _fail(*_: object) -> None:
        raise RuntimeError("broken")


def taken_back(model: Model, enter: Around, x: Tensor) -> None:
    """A step of another prompt and level that is cancelled when its forward is over."""
    with enter(6, STEPS, sigmas(STEPS)[6]):
        model.predict(x, timestep(model.family, 0.9), conditioning(model.family, seed=3))
        raise CancelledError("taken back")


@BOTH
def test_a_cancel_between_forward_and_step_is_not_remembered(model: Model, settings: Settings) -> None:
    expected = alone(model, settings)
    cache = install(model, settings)
    walker = Walker(model, around(cache, "run"))
    for index in range(STEPS):
        if index == 6:
            with pytest.raises(CancelledError):
                taken_back(model, around(cache, "run"), walker.x)
        walker()
    assert torch.equal(walker.x, expected.latent)


@BOTH
def test_a_negative_that_is_skipped_at_some_steps_does_not_shift_the_positive(
    model: Model, settings: Settings
) -> None:
    expected = alone(model, settings)
    cache = install(model, settings)
    positive = Walker(model, around(cache, "run"))
    negative = Walker(model, around(cache, "run", rows=[("negative", 0)]), seed=1)
    for index in range(STEPS):
        positive()
        if index in (0, 1, 2, 4, 7):
            negative.index = index
            negative()
    assert torch.equal(positive.x, expected.latent)


def test_a_branch_that_sat_out_a_computed_step_computes_when_it_is_back(model: Model) -> None:
    cache = install(model, STATIC)
    negative = Walker(model, around(cache, "run", rows=[("negative", 0)]))
    for index in (0, 1, 2, 3, 6, 7):
        negative.index = index
        negative()
    assert cache.tally("run").decisions["negative", 0] == [
        (0, False), (1, False), (2, False), (3, True), (6, False), (7, True)
    ]  # fmt: skip


@BOTH
def test_a_second_pass_at_another_size_is_a_run_of_its_own(model: Model, settings: Settings) -> None:
    x = latent(model.family, seed=5, scale=2)
    expected = alone(model, settings, x=x)
    cache = install(model, settings)
    euler(model, STEPS, around=around(cache, "pass 1"))
    check(euler(model, STEPS, x=x, around=around(cache, "pass 2")), expected)


@BOTH
@pytest.mark.parametrize("family", ["wan", "hunyuan_video"])
def test_a_second_pass_over_a_video_is_a_run_of_its_own(settings: Settings, family: str) -> None:
    model = network(family)
    frames = torch.cat([latent(family, seed=5), latent(family, seed=6)], dim=2)
    expected = alone(model, settings, x=frames)
    cache = install(model, settings)
    try:
        euler(model, STEPS, around=around(cache, "pass 1"))
        check(euler(model, STEPS, x=frames, around=around(cache, "pass 2")), expected)
    finally:
        remove(model)


@BOTH
def test_a_loop_that_begins_again_under_one_name_starts_afresh(model: Model, settings: Settings) -> None:
    expected = alone(model, settings, seed=1)
    cache = install(model, settings)
    euler(model, STEPS, around=around(cache, "run"))
    check(euler(model, STEPS, seed=1, around=around(cache, "run")), expected)


def test_two_transformers_that_share_a_run_share_no_state(model: Model) -> None:
    """Wan 2.2: one model for the noisy steps, one for the others, each with its cache."""
    other = build("qwen_image", num_layers=5)
    caches = [install(each, STATIC) for each in (model, other)]
    x, schedule, given = latent(model.family), sigmas(STEPS), conditioning(model.family)
    for index, sigma in enumerate(schedule[:-1]):
        late = index >= 4
        each, cache = (other, caches[1]) if late else (model, caches[0])
        with around(cache, "run")(index, STEPS, sigma):
            x = x + (schedule[index + 1] - sigma) * each.predict(x, timestep(model.family, sigma), given)
    decided = [[reused for _, reused in cache.tally("run").decisions["positive", 0]] for cache in caches]
    assert decided == [[False, False, False, True], [False, False, True, True, False, True]]


@BOTH
def test_even_under_one_name_another_size_starts_afresh(model: Model, settings: Settings) -> None:
    cache = install(model, settings)
    enter = around(cache, "run")
    small, large = Walker(model, enter), Walker(model, enter, scale=2)
    for _ in range(6):
        small()
    large.index = 6
    large()
    assert cache.tally("run").decisions["positive", 0][-1] == (6, False)


@BOTH
def test_another_length_of_text_starts_afresh(model: Model, settings: Settings) -> None:
    cache = install(model, settings)
    enter = around(cache, "run")
    walker = Walker(model, enter)
    for _ in range(6):
        walker()
    walker._given = conditioning(model.family, words=9)
    walker()
    assert cache.tally("run").decisions["positive", 0][-1] == (6, False)


def test_a_lora_or_a_strength_that_changes_starts_afresh(model: Model) -> None:
    cache = install(model, STATIC)
    before, after = (around(cache, "run", weights=version) for version in ("lora 0.5", "lora 0.8"))
    euler(model, STEPS, around=lambda index, *rest: (before if index < 4 else after)(index, *rest))
    reused = [reused for _, reused in cache.tally("run").decisions["positive", 0]]
    assert reused == [False, False, False, True, False, False, True, True, False, True]


@BOTH
def test_two_prompts_in_one_batch_are_each_its_own_run(model: Model, settings: Settings) -> None:
    expected = [alone(model, settings, seed=seed) for seed in (0, 1)]
    cache = install(model, settings)
    given = {"context": torch.cat([conditioning(model.family, seed=seed)["context"] for seed in (0, 1)])}
    x = torch.cat([latent(model.family, seed=seed) for seed in (0, 1)])
    rows = [("positive", 0), ("positive", 1)]
    batch = euler(model, STEPS, given=given, x=x, around=around(cache, "run", rows=rows))
    for row, trace in enumerate(expected):
        decided = [reused for _, reused in cache.tally("run").decisions["positive", row]]
        assert decided == [blocks < max(trace.blocks) for blocks in trace.blocks]
        assert differ(batch.latent[row : row + 1], trace.latent) < 1e-5


@BOTH
def test_one_call_for_both_branches_or_one_for_each_is_the_same(model: Model, settings: Settings) -> None:
    """ComfyUI splits a guided step in two when it thinks memory is short, even in the middle of a run."""
    expected = [alone(model, settings, seed=seed).latent for seed in (0, 1)]
    cache = install(model, settings)
    schedule, keys = sigmas(STEPS), [("negative", 0), ("positive", 0)]
    given = torch.cat([conditioning(model.family, seed=seed)["context"] for seed in (0, 1)])
    x = torch.cat([latent(model.family, seed=seed) for seed in (0, 1)])
    for index, sigma in enumerate(schedule[:-1]):
        together = index in (0, 1, 5, 6)
        v = [
            predict(model, cache, index, sigma, x[part], given[part], keys[part])
            for part in ([slice(0, 2)] if together else [slice(1, 2), slice(0, 1)])
        ]
        x = x + (schedule[index + 1] - sigma) * torch.cat(v if together else v[::-1])
    assert differ(x, torch.cat(expected)) < 1e-5


def predict(
    model: Model, cache: StepCache, index: int, sigma: float, x: Tensor, context: Tensor, keys: Any
) -> Tensor:
    with cache.step(run="run", rows=keys, index=index, total=STEPS, sigma=sigma):
        return model.predict(x, timestep(model.family, sigma, len(x)), {"context": context})


@BOTH
def test_two_threads_on_one_model_do_not_meet(model: Model, settings: Settings) -> None:
    expected = [alone(model, settings, seed=seed).latent for seed in (0, 1)]
    cache = install(model, settings)
    walkers = [Walker(model, around(cache, f"user {seed}"), seed=seed) for seed in (0, 1)]
    turn = threading.Barrier(2)

    def walk(walker: Walker) -> None:
        for _ in range(STEPS):
            turn.wait()
            walker()

    # Attention has a seam of its own, which is for one thread at a time.
    model.attention, seam = threading.Lock(), model.attention
    try:
        threads = [threading.Thread(target=walk, args=(walker,)) for walker in walkers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        model.attention = seam
    for walker, latent_ in zip(walkers, expected, strict=True):
        assert differ(walker.x, latent_) < 1e-5


def test_a_step_inside_a_step_is_refused(model: Model) -> None:
    cache = install(model, DYNAMIC)
    inner = around(cache, "two")(0, STEPS, 1.0)
    with around(cache, "one")(0, STEPS, 1.0), pytest.raises(InternalError, match="last one ended"), inner:
        pass


def test_a_second_forward_in_one_step_is_refused(model: Model) -> None:
    cache = install(model, DYNAMIC)
    walker = Walker(model, lambda *_: nullcontext())
    with around(cache, "run")(0, STEPS, 1.0):
        walker()
        with pytest.raises(InternalError, match="second forward"):
            walker()


def test_rows_that_do_not_match_the_batch_are_refused(model: Model) -> None:
    cache = install(model, DYNAMIC)
    rows = [("positive", 0), ("positive", 1)]
    with pytest.raises(InternalError, match="told of 2 rows; 1 came"):
        Walker(model, around(cache, "run", rows=rows))()


def test_a_run_that_is_dropped_in_the_middle_of_a_step_stays_dropped(model: Model) -> None:
    cache = install(model, DYNAMIC)
    walker = Walker(model, lambda *_: nullcontext())
    with around(cache, "run")(0, STEPS, 1.0):
        walker()
        cache.drop("run")
    assert cache.nbytes == 0
