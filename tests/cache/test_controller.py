from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from cache.networks import ALL, BLOCKS, Trace, blocks_of, build, conditioning, differ, euler, latent, network
from cache.test_isolation import DYNAMIC, STATIC, STEPS, around
from outboard.engine.cache.controller import install, installed, remove
from outboard.engine.cache.settings import Settings
from outboard.engine.models.model import Model
from outboard.protocol.errors import InternalError, InvalidRequestError, UnsupportedRequestError


@pytest.fixture(params=ALL)
def each(request: pytest.FixtureRequest) -> Iterator[Model]:
    model = network(request.param)
    yield model
    remove(model)


@pytest.fixture
def model() -> Iterator[Model]:
    model = network("wan")
    yield model
    remove(model)


def cached(model: Model, settings: Settings, steps: int = STEPS, **run: Any) -> Trace:
    with_cache = install(model, settings)
    try:
        return euler(model, steps, around=around(with_cache, "run"), **run)
    finally:
        remove(model)


def test_what_is_removed_was_never_there(each: Model) -> None:
    keys, before = list(each.module.state_dict()), euler(each, 2).latent
    untouched = [dict(vars(block)) for block in blocks_of(each.module)]
    install(each, DYNAMIC)
    assert list(each.module.state_dict()) == keys
    assert torch.equal(euler(each, 2).latent, before)
    remove(each)
    assert [dict(vars(block)) for block in blocks_of(each.module)] == untouched
    assert installed(each) is None
    assert torch.equal(euler(each, 2).latent, before)


def test_a_cache_that_reuses_nothing_changes_nothing(each: Model) -> None:
    never = Settings(Fn_compute_blocks=1, residual_diff_threshold=0.0, max_warmup_steps=0)
    assert torch.equal(cached(each, never, 4).latent, euler(each, 4).latent)


def test_every_family_skips_the_blocks_between_first_and_last(each: Model) -> None:
    always = Settings(
        Fn_compute_blocks=1, Bn_compute_blocks=1, residual_diff_threshold=1.0, max_warmup_steps=2
    )
    assert cached(each, always, 5).blocks == [BLOCKS, BLOCKS, 2, 2, 2]


@pytest.mark.parametrize(("first", "last"), [(2, 0), (4, 1), (1, 4)])
def test_the_cut_may_lie_in_either_list_of_blocks(each: Model, first: int, last: int) -> None:
    settings = Settings(
        Fn_compute_blocks=first, Bn_compute_blocks=last, residual_diff_threshold=1.0, max_warmup_steps=2
    )
    trace = cached(each, settings, 6)
    assert trace.blocks == [BLOCKS, BLOCKS, *[first + last] * 4]
    assert differ(trace.latent, euler(each, 6).latent) < 0.6


def test_a_static_skip_may_skip_the_first_blocks_too(each: Model) -> None:
    settings = Settings(
        Fn_compute_blocks=1,
        steps_computation_mask=(1, 1, 0, 1, 0, 1),
        steps_computation_policy="static",
        taylorseer_order=1,
        skip_fn_on_static=True,
    )
    trace = cached(each, settings, 6)
    assert trace.blocks == [BLOCKS, BLOCKS, 0, BLOCKS, 0, BLOCKS]
    assert differ(trace.latent, euler(each, 6).latent) < 0.3


def test_rows_of_one_batch_that_need_different_things_each_get_theirs(each: Model) -> None:
    """The second row joins late, so that its warm-up falls into the first one's skipped steps."""
    settings = Settings(Fn_compute_blocks=1, residual_diff_threshold=0.3, max_warmup_steps=3)
    whole = {key: torch.cat([value, value.roll(1, -1)]) for key, value in conditioning(each.family).items()}
    x = torch.cat([latent(each.family, seed=seed) for seed in (0, 1)])
    rows = [("positive", 0), ("positive", 1)]
    solo = []
    for row in (0, 1):
        part = {key: value[row : row + 1] for key, value in whole.items()}
        solo.append(cached(each, settings, 8, given=part, x=x[row : row + 1]))
    step_cache = install(each, settings)
    both = euler(each, 8, given=whole, x=x, around=around(step_cache, "run", rows=rows))
    for row, trace in enumerate(solo):
        decided = [reused for _, reused in step_cache.tally("run").decisions["positive", row]]
        assert decided == [blocks < BLOCKS for blocks in trace.blocks]
        assert differ(both.latent[row : row + 1], trace.latent) < 1e-5


def test_a_mixed_batch_computes_only_the_rows_that_need_it(each: Model) -> None:
    settings = Settings(Fn_compute_blocks=1, residual_diff_threshold=1.0, max_warmup_steps=1)
    step_cache = install(each, settings)
    whole = conditioning(each.family, rows=3)
    x = latent(each.family, rows=3)
    first = {key: value[:1] for key, value in whole.items()}
    euler(each, 1, given=first, x=x[:1], around=lambda *_: step_cache.step(
        run="run", rows=[("positive", 1)], index=0, total=4, sigma=1.0))  # fmt: skip
    seen: list[tuple[int, ...]] = []
    middle = blocks_of(each.module)[2]
    probe = next(part for part in middle.modules() if isinstance(part, nn.Linear))
    handle = probe.register_forward_pre_hook(lambda _, inputs: seen.append(tuple(inputs[0].shape)))
    try:
        rows = [("positive", row) for row in range(3)]
        euler(each, 1, given=whole, x=x, around=lambda *_: step_cache.step(
            run="run", rows=rows, index=1, total=4, sigma=0.5))  # fmt: skip
    finally:
        handle.remove()
    tally = step_cache.tally("run")
    assert (tally.rows_computed, tally.rows_reused) == (3, 1)
    assert 2 in seen[0]
    assert 3 not in seen[0][:2]


def test_rows_with_references_held_at_zero_are_taken_apart_as_well() -> None:
    """Qwen-Image-Edit modulates with a batch of its own for the references."""
    model = network("qwen_image")
    settings = Settings(Fn_compute_blocks=1, residual_diff_threshold=1.0, max_warmup_steps=1)
    given: dict[str, Any] = conditioning("qwen_image", rows=2)
    given["ref_latents"] = [latent("qwen_image", rows=2, seed=7)]
    given["ref_latents_method"] = "index_timestep_zero"
    x = latent("qwen_image", rows=2)
    first = {"context": given["context"][:1], "ref_latents_method": given["ref_latents_method"]}
    first["ref_latents"] = [given["ref_latents"][0][:1]]
    second = {"context": given["context"][1:], "ref_latents_method": given["ref_latents_method"]}
    second["ref_latents"] = [given["ref_latents"][0][1:]]
    expected = model.predict(x[1:], torch.full((1,), 0.5), second)
    step_cache = install(model, settings)
    try:
        with step_cache.step(run="run", rows=[("p", 0)], index=0, total=2):
            model.predict(x[:1], torch.full((1,), 1.0), first)
        with step_cache.step(run="run", rows=[("p", 0), ("p", 1)], index=1, total=2):
            both = model.predict(x, torch.full((2,), 0.5), given)
    finally:
        remove(model)
    assert differ(both[1:], expected) < 1e-5


def test_static_steps_never_wait_for_the_device(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    step_cache = install(model, STATIC)

    def wait(*_: object) -> None:
        raise AssertionError("the host waited for the device")

    enter = around(step_cache, "run")

    def quiet(index: int, total: int, sigma: float) -> Any:
        for name in ("item", "tolist", "__bool__", "__float__", "cpu"):
            monkeypatch.setattr(Tensor, name, wait)
        return enter(index, total, sigma)

    unmasked = conditioning(model.family)
    x = latent(model.family)
    for index in range(STEPS):
        with quiet(index, STEPS, 1 - index / STEPS):
            model.predict(x, torch.full((1,), 500.0), unmasked)
        monkeypatch.undo()
    assert step_cache.tally("run").rows_reused == 5


def test_a_dynamic_step_waits_once_for_all_rows(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    step_cache = install(
        model, Settings(Fn_compute_blocks=1, max_warmup_steps=1, residual_diff_threshold=0.2)
    )
    waits: list[int] = []
    tolist = Tensor.tolist

    def wait(tensor: Tensor) -> Any:
        waits.append(1)
        return tolist(tensor)

    monkeypatch.setattr(Tensor, "tolist", wait)
    rows = [("positive", 0), ("positive", 1), ("negative", 0)]
    euler(model, 4, rows=3, around=around(step_cache, "run", rows=rows))
    assert len(waits) - 1 == 3  # one is the schedule's


def test_the_distance_is_added_up_over_the_ranks_that_share_a_forward(model: Model) -> None:
    given: list[Tensor] = []

    def reduce(sums: Tensor) -> Tensor:
        given.append(sums.clone())
        return sums * torch.tensor([0.0, 1.0])

    step_cache = install(model, DYNAMIC, reduce=reduce)
    trace = euler(model, STEPS, around=around(step_cache, "run"))
    assert trace.blocks == [BLOCKS] * 3 + [1] * (STEPS - 3)
    assert [tuple(sums.shape) for sums in given] == [(1, 2)] * (STEPS - 3)


@pytest.mark.parametrize("calls", ["heun", "midpoint"])
def test_calls_between_steps_have_their_place_by_sigma(model: Model, calls: str) -> None:
    """Two calls a step, the second at the next sigma (Heun) or halfway; steps are still counted once."""
    mask = (1, 1, 0, 1, 0, 1)
    settings = Settings(Fn_compute_blocks=1, steps_computation_mask=mask, steps_computation_policy="static")
    step_cache = install(model, settings)
    schedule = [1.0, 0.9, 0.7, 0.5, 0.3, 0.1, 0.0]
    x, given = latent(model.family), conditioning(model.family)
    with step_cache.running("run", total=6, sigmas=schedule) as tally:
        for index, (sigma, following) in enumerate(pairwise(schedule)):
            inner = following if calls == "heun" else (sigma + following) / 2
            for level in (sigma, inner) if following or calls == "midpoint" else (sigma,):
                with step_cache.step(run="run", rows=[("p", 0)], index=index, total=6, sigma=level):
                    model.predict(x, torch.full((1,), level * 1000), given)
        decided = [reused for _, reused in tally.decisions["p", 0]]
    steps = [0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5] if calls == "heun" else [number // 2 for number in range(12)]
    assert decided == [not mask[step] for step in steps]
    assert step_cache.nbytes == 0


def test_without_a_schedule_a_call_between_steps_is_computed_and_forgotten(model: Model) -> None:
    step_cache = install(
        model, Settings(Fn_compute_blocks=1, residual_diff_threshold=1.0, max_warmup_steps=1)
    )
    x, given = latent(model.family), conditioning(model.family)
    for index, sigma in ((0, 1.0), (0, 0.8), (1, 0.8), (1, 0.6), (2, 0.6)):
        with step_cache.step(run="run", rows=[("p", 0)], index=index, total=3, sigma=sigma):
            model.predict(x, torch.full((1,), sigma * 1000), given)
    assert [reused for _, reused in step_cache.tally("run").decisions["p", 0]] == [
        False,
        False,
        True,
        False,
        True,
    ]


def test_a_full_budget_is_told_and_changes_no_picture(model: Model) -> None:
    unlimited = cached(model, STATIC)
    assert max(unlimited.blocks) > min(unlimited.blocks)
    step_cache = install(model, STATIC, budget=100)
    trace = euler(model, STEPS, around=around(step_cache, "run"))
    assert trace.blocks == [BLOCKS] * STEPS
    assert torch.equal(trace.latent, euler(model, STEPS).latent)
    (note,) = step_cache.tally("run").notes
    assert "budget of 100 bytes" in note
    assert "OUTBOARD_CACHE_BUDGET" in note
    assert step_cache.nbytes == 0


def test_what_is_kept_is_what_is_counted(model: Model) -> None:
    step_cache = install(model, STATIC)
    euler(model, STEPS, around=around(step_cache, "run"))
    tokens = 16 * 128 * 4  # N x D in fp32; two computed steps are kept, and no probe
    assert step_cache.nbytes == 2 * tokens
    assert step_cache.tally("run").peak_bytes == 2 * tokens
    step_cache.drop("run")
    assert step_cache.nbytes == 0


def test_the_report_counts_rows_and_blocks(model: Model) -> None:
    step_cache = install(model, STATIC)
    trace = euler(model, STEPS, around=around(step_cache, "run"))
    told = step_cache.tally("run")
    assert (told.blocks_computed, told.blocks_total) == (sum(trace.blocks), BLOCKS * STEPS)
    assert (told.rows_computed, told.rows_reused, told.hit_rate) == (5, 5, 0.5)


def test_a_run_may_bring_its_own_settings(model: Model) -> None:
    step_cache = install(model, DYNAMIC)
    step_cache.begin("run", total=STEPS, settings=STATIC)
    trace = euler(model, STEPS, around=around(step_cache, "run"))
    assert [blocks == BLOCKS for blocks in trace.blocks] == [
        bool(one) for one in STATIC.steps_computation_mask
    ]


def test_what_cannot_be_is_refused_before_anything_is_sampled(model: Model) -> None:
    with pytest.raises(InvalidRequestError, match="none of the model's 6 blocks"):
        install(model, Settings(Fn_compute_blocks=4, Bn_compute_blocks=2))
    assert installed(model) is None
    step_cache = install(model, DYNAMIC)
    with pytest.raises(InvalidRequestError, match="for 10 steps, the run has 12"):
        step_cache.begin("run", total=12, settings=STATIC)
    with (
        pytest.raises(InvalidRequestError, match="step 4 is not one of 4"),
        around(step_cache, "run")(4, 4, 0.1),
    ):
        pass


def test_an_unloaded_model_takes_its_cache_along() -> None:
    model = build("wan")
    step_cache = install(model, STATIC)
    euler(model, STEPS, around=around(step_cache, "run"))
    module = weakref.ref(model.module)
    del model, step_cache
    gc.collect()
    assert module() is None


def test_a_second_cache_is_refused(model: Model) -> None:
    install(model, DYNAMIC)
    with pytest.raises(InternalError, match="already"):
        install(model, STATIC)


def test_a_network_without_a_pattern_says_so(model: Model) -> None:
    class Other(nn.Module):
        pass

    other = Model(model.adapter, Other(), model.dtype, model.device, model.header)
    with pytest.raises(UnsupportedRequestError, match="Other"):
        install(other, DYNAMIC)


def test_what_lies_over_the_cache_must_go_first(model: Model) -> None:
    install(model, DYNAMIC)
    block = blocks_of(model.module)[0]
    inner = block.forward
    vars(block)["forward"] = partial(inner)
    with pytest.raises(InternalError, match="remove that first"):
        remove(model)
    vars(block)["forward"] = inner


def test_a_forward_that_was_put_on_a_block_before_is_kept(model: Model) -> None:
    block = blocks_of(model.module)[0]
    inner: Callable[..., Any] = block.forward
    calls: list[int] = []

    def mine(*args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        return inner(*args, **kwargs)

    vars(block)["forward"] = mine
    try:
        cached(model, DYNAMIC, 2)
        assert calls == [1, 1]
        assert vars(block)["forward"] is mine
    finally:
        del vars(block)["forward"]


@pytest.mark.parametrize("first", ["compiled", "cached"])
def test_compiled_blocks_are_skipped_as_well(first: str) -> None:
    """Whether compiled before or after: a cache that silently skips nothing is the bug to guard against."""
    model = network("wan")
    expected = cached(model, STATIC)
    try:
        if first == "cached":
            step_cache = install(model, STATIC)
        for block in blocks_of(model.module):
            block.compile(backend="eager")
        if first == "compiled":
            step_cache = install(model, STATIC)
        trace = euler(model, STEPS, around=around(step_cache, "run"))
    finally:
        for block in blocks_of(model.module):
            block._compiled_call_impl = None
        remove(model)
        torch.compiler.reset()
    assert trace.blocks == expected.blocks
    assert differ(trace.latent, expected.latent) < 1e-6
