"""The step cache on a rank: off is never, users never meet, and a run that ends leaves nothing."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import harness
from outboard.engine.cache.choice import Choice
from outboard.engine.cache.config import CacheConfig
from outboard.engine.cache.controller import installed
from outboard.engine.demo.assets import MODEL
from outboard.engine.models.loader import load
from outboard.engine.models.model import Model
from outboard.engine.rank.blobs import BlobStore
from outboard.engine.rank.run import Outcome, loop_of, run_loop
from outboard.engine.rank.step_cache import Caches
from outboard.engine.rank.steps import Account, Accounts, predict
from outboard.protocol.errors import CancelledError, InvalidRequestError, OutOfMemoryError
from outboard.protocol.messages.cache import CacheReport, CacheSettings, Schedule
from outboard.protocol.messages.client import Predict, Run
from outboard.protocol.messages.guidance import CfgOverride
from outboard.protocol.torch import from_wire, pack_tree, to_wire

STEPS = 12
BALANCED = CacheSettings(preset="balanced")
THRESHOLD = CacheSettings(
    preset="custom",
    values={"Fn_compute_blocks": 1, "max_warmup_steps": 3, "residual_diff_threshold": 0.3},
)
BOTH = pytest.mark.parametrize("settings", [BALANCED, THRESHOLD], ids=["mask", "threshold"])


@pytest.fixture
def model() -> Iterator[Model]:
    loaded = load(MODEL, dtype=torch.float32, device=torch.device("cpu"))
    yield loaded
    assert not wrapped(loaded), "something was left on the model"


def wrapped(model: Model) -> bool:
    """Whether anything is on any of the model's modules that a fresh one does not have."""
    return installed(model) is not None or any("forward" in vars(module) for module in model.module.modules())


def request(settings: CacheSettings | None, steps: int = STEPS, **changes: Any) -> Run:
    sides = {"cfg": 3.0, "negative": [harness.branch(None)], **changes}
    return harness.run(steps, cache=settings, **sides)


def sampled(
    run: Run, model: Model, caches: Caches | None = None, stop_at: int = -1, key: str = "run"
) -> Outcome:
    """`run` as the worker makes it; CancelledError before the forward number `stop_at`."""
    calls = iter(range(10_000))

    def check() -> None:
        if next(calls) == stop_at:
            raise CancelledError("stop")

    caches = caches or Caches(CacheConfig())
    cached = caches.open(run.cache, model, run.model.name, ("session", key), loop_of(run))
    try:
        return run_loop(run, model, BlobStore(0), check=check, tell=lambda _: None, cached=cached)
    finally:
        cached.forget()


def report(outcome: Outcome) -> CacheReport:
    assert outcome.cache is not None
    return outcome.cache


def test_off_is_bit_equal_to_never_installed(model: Model) -> None:
    never = sampled(request(None), model)
    assert not wrapped(model)
    on = sampled(request(BALANCED), model)
    assert not torch.equal(on.latent, never.latent)
    assert not wrapped(model)
    for settings in (None, CacheSettings(preset="off")):
        off = sampled(request(settings), model)
        assert torch.equal(off.latent, never.latent)
        assert off.cache is None


def test_a_run_without_a_cache_beside_one_with_is_as_if_it_were_alone(model: Model) -> None:
    alone = sampled(request(None), model)
    caches = Caches(CacheConfig())
    run = request(BALANCED)
    other = caches.open(run.cache, model, run.model.name, ("other", "run"), loop_of(run))
    assert wrapped(model)
    assert torch.equal(sampled(request(None), model, caches).latent, alone.latent)
    assert wrapped(model), "the other run is not over"
    other.forget()


@BOTH
def test_the_report_counts_every_row(model: Model, settings: CacheSettings) -> None:
    outcome = sampled(request(settings), model)
    found = report(outcome)
    assert (found.steps, len(found.computed), len(found.reused)) == (STEPS, STEPS, STEPS)
    assert [new + again for new, again in zip(found.computed, found.reused, strict=True)] == [2] * STEPS
    assert sum(found.reused) >= 4
    assert found.hit_rate == pytest.approx(sum(found.reused) / (2 * STEPS), abs=1e-4)
    assert found.hit_rates.keys() == {"digit-3", "digit-None"}
    assert found.blocks_total == 2 * STEPS * 3
    assert found.saving == pytest.approx(1 - found.blocks_computed / found.blocks_total, abs=1e-4)
    assert found.saving <= found.saving_predicted + 1e-9
    assert found.peak_bytes > 0


def test_a_static_mask_saves_what_was_predicted_and_measures_nothing(model: Model) -> None:
    values = {"scm_preset": "medium", "steps_computation_policy": "static", "Fn_compute_blocks": 1}
    found = report(sampled(request(CacheSettings(preset="custom", values=values)), model))
    assert found.saving == found.saving_predicted > 0.2
    assert found.residuals == []


def test_a_threshold_draws_its_curve(model: Model) -> None:
    found = report(sampled(request(THRESHOLD), model))
    assert [point.step for point in found.residuals] == list(range(3, STEPS))
    for point in found.residuals:
        assert (point.distance < 0.3) == (found.computed[point.step] == 0)


def test_few_steps_say_why_none_is_reused(model: Model) -> None:
    settings = CacheSettings(preset="custom", values={"Fn_compute_blocks": 1, "scm_preset": "fast"})
    found = report(sampled(request(settings, steps=4), model))
    assert sum(found.reused) == 0
    assert any("needs 8 steps" in note for note in found.notes)


def test_a_cancelled_run_leaves_nothing(model: Model) -> None:
    caches = Caches(CacheConfig())
    expected = sampled(request(BALANCED), model)
    with pytest.raises(CancelledError):
        sampled(request(BALANCED), model, caches, stop_at=5)
    assert not wrapped(model)
    assert torch.equal(sampled(request(BALANCED), model, caches).latent, expected.latent)


def test_settings_that_do_not_fit_fail_before_the_first_forward_and_leave_nothing(model: Model) -> None:
    bad = CacheSettings(preset="custom", values={"Fn_compute_blocks": 1, "steps_computation_mask": [1, 0]})
    with pytest.raises(InvalidRequestError, match="is for 2 steps"):
        sampled(request(bad), model)
    assert not wrapped(model)


def test_engine_settings_that_do_not_fit_are_left_out_with_a_note(model: Model) -> None:
    caches = Caches(CacheConfig(Choice(values={"Fn_compute_blocks": 90}, origin="FILE")))
    outcome = sampled(request(None), model, caches)
    assert "leave none of the model's 3 blocks" in report(outcome).notes[0]
    assert torch.equal(outcome.latent, sampled(request(None), model).latent)


def test_the_engines_default_holds_where_a_run_says_nothing(model: Model) -> None:
    caches = Caches(CacheConfig(Choice("fast", origin="OUTBOARD_CACHE_PRESET")))
    own, off = request(None), request(CacheSettings(preset="off"))
    assert report(sampled(own, model, caches)).preset == "fast"
    assert sampled(off, model, caches).cache is None


def test_the_second_of_two_transformers_has_settings_of_its_own(model: Model) -> None:
    caches = Caches(CacheConfig(Choice("fast"), Choice("quality")))
    run = request(None)
    names = {"wan2.2_t2v_high_noise_14B.safetensors": "fast", "Wan2.2-T2V-A14B-LowNoise-Q4.gguf": "quality"}
    for name, expected in names.items():
        cached = caches.open(None, model, name, ("s", name), loop_of(run))
        found = cached.report()
        cached.forget()
        assert found is not None
        assert found.preset == expected


def test_another_size_next_is_a_run_of_its_own(model: Model) -> None:
    caches = Caches(CacheConfig())
    large = torch.randn(1, 16, 12, 8, generator=torch.Generator().manual_seed(2))
    fields = {"noise": to_wire(large), "latent": to_wire(torch.zeros_like(large))}
    small, wide = request(BALANCED), request(BALANCED, **fields)
    alone = [sampled(run, model).latent for run in (small, wide)]
    for run, expected in zip((small, wide, small), (*alone, alone[0]), strict=True):
        assert torch.equal(sampled(run, model, caches).latent, expected)


def test_guidance_that_ends_early_leaves_a_branch_behind(model: Model) -> None:
    """Below half the noise cfg is 1: the negative is not asked, and the positive goes on as it was."""
    tail = request(THRESHOLD, changes=[CfgOverride(scale=1.0, start=0.5, end=0.0)])
    found = report(sampled(tail, model))
    rows = [new + again for new, again in zip(found.computed, found.reused, strict=True)]
    assert rows[0] == 2
    assert rows[-1] == 1
    assert sum(found.reused) >= 3


def test_a_batch_is_its_rows(model: Model) -> None:
    noise = torch.cat([harness.noise(seed) for seed in (1, 2)])
    both = request(THRESHOLD, noise=to_wire(noise), latent=to_wire(torch.zeros_like(noise)))
    together = sampled(both, model).latent
    for row in range(2):
        one = noise[row : row + 1].clone()
        alone = request(THRESHOLD, noise=to_wire(one), latent=to_wire(torch.zeros_like(one)))
        difference = (sampled(alone, model).latent - together[row : row + 1]).abs().max()
        assert float(difference) <= 1e-4


def test_fresh_noise_is_refused_unless_forced(model: Model) -> None:
    ancestral = {"sampler": "euler_ancestral"}
    kept = report(sampled(request(BALANCED, **ancestral), model))
    assert (kept.values, kept.reused) == ({}, [])
    assert "fresh noise" in kept.notes[0]
    forced = CacheSettings(preset="balanced", force=True)
    found = report(sampled(request(forced, **ancestral), model))
    assert sum(found.reused) > 0
    assert found.notes[0].startswith("Forced against this: ")


class Stepper:
    """One user's per-step euler run at cfg 3, call by call."""

    def __init__(self, accounts: Accounts, model: Model, session: str, digit: int, **more: Any) -> None:
        self.accounts, self.model, self.session = accounts, model, session
        self.sigmas = torch.linspace(1, 0, STEPS + 1)
        self.x = harness.noise(digit)
        sides = [from_wire_tree(harness.branch(None)), from_wire_tree(harness.branch(digit))]
        joined = {name: torch.cat([side[name] for side in sides]) for name in sides[0]}
        self.conditioning = pack_tree(joined)
        self.fields = {"cache": THRESHOLD, **more}
        self.schedule = Schedule(sampler="euler", sigmas=to_wire(self.sigmas))

    def request(self, index: int) -> Predict:
        both = torch.cat([self.x, self.x])
        base = harness.predict("run", float(self.sigmas[index]))
        fields = {
            "x": to_wire(both),
            "timestep": to_wire(self.sigmas[index].repeat(2)),
            "branches": ["1.n", "0.p"],
            "conditioning": self.conditioning,
            "schedule": self.schedule,
            **self.fields,
        }
        return base.model_copy(update=fields)

    def step(self, index: int) -> None:
        request = self.request(index)
        account = self.accounts.open(self.session, request, self.model)
        v, _ = predict(request, self.model, BlobStore(0), account)
        negative, positive = v.float().chunk(2)
        guided = negative + 3.0 * (positive - negative)
        self.x = self.x + (self.sigmas[index + 1] - self.sigmas[index]) * guided

    def close(self) -> CacheReport:
        account = self.accounts.close(self.session, "run")
        assert account is not None
        found = account.report(1, 0).cache
        assert found is not None
        return found

    def alone(self) -> tuple[Tensor, CacheReport]:
        for index in range(STEPS):
            self.step(index)
        return self.x, self.close()


def from_wire_tree(branch: Any) -> dict[str, Tensor]:
    return {name: from_wire(value).clone() for name, value in branch.conditioning.items()}


def opened() -> Accounts:
    return Accounts(Caches(CacheConfig()))


def test_two_users_step_by_step_are_as_if_each_were_alone(model: Model) -> None:
    alone = [Stepper(opened(), model, "a", digit).alone() for digit in (3, 7)]
    accounts = opened()
    users = [Stepper(accounts, model, session, digit) for session, digit in (("a", 3), ("b", 7))]
    for index in range(STEPS):
        for user in users:
            user.step(index)
    for user, (latent, expected) in zip(users, alone, strict=True):
        found = user.close()
        assert torch.equal(user.x, latent)
        assert sum(found.reused) > 4
        assert found.reused == expected.reused
        assert found.residuals == expected.residuals


def test_both_paths_decide_alike(model: Model) -> None:
    latent, stepped = Stepper(opened(), model, "a", 3).alone()
    noise = harness.noise(3)
    whole = sampled(request(THRESHOLD, noise=to_wire(noise), latent=to_wire(torch.zeros_like(noise))), model)
    assert stepped.reused == report(whole).reused
    assert float((whole.latent - latent).abs().max()) <= 1e-4


def test_a_session_that_ends_takes_its_runs_along(model: Model) -> None:
    accounts = opened()
    user, other = Stepper(accounts, model, "a", 3), Stepper(accounts, model, "b", 3)
    user.step(0)
    other.step(0)
    accounts.end_session("a")
    cache = installed(model)
    assert cache is not None
    assert cache.nbytes > 0
    accounts.end_session("b")
    assert cache.nbytes == 0


def fail(*_: Any) -> None:
    raise RuntimeError("after all blocks")


def test_a_failed_call_forgets_the_run_and_the_next_computes(model: Model) -> None:
    user = Stepper(opened(), model, "a", 3)
    for index in range(6):
        user.step(index)
    broken = model.module.norm_out.register_forward_pre_hook(fail)
    with pytest.raises(RuntimeError, match="after all blocks"):
        user.step(6)
    broken.remove()
    assert not wrapped(model)
    user.step(6)
    assert user.close().computed[6] == 2


def test_a_call_made_in_parts_for_memory_keeps_its_rows(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, expected = Stepper(opened(), model, "a", 3).alone()
    predicted = Model.predict

    def within(self: Model, x: Tensor, timestep: Tensor, conditioning: Any) -> Tensor:
        if len(x) > 1:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return predicted(self, x, timestep, conditioning)

    monkeypatch.setattr(Model, "predict", within)
    _, found = Stepper(opened(), model, "a", 3).alone()
    assert found.reused == expected.reused


def test_a_call_that_never_fits_leaves_nothing(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: Any) -> Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory.")

    user = Stepper(opened(), model, "a", 3)
    user.step(0)
    monkeypatch.setattr(Model, "predict", never)
    with pytest.raises(OutOfMemoryError):
        user.step(1)
    assert not wrapped(model)


def test_a_run_without_schedule_or_branches_is_computed_and_says_so(model: Model) -> None:
    blind = Stepper(opened(), model, "a", 3, schedule=None)
    latent, found = blind.alone()
    plain = Stepper(opened(), model, "a", 3, cache=None)
    for index in range(STEPS):
        plain.step(index)
    assert torch.equal(latent, plain.x)
    assert "does not say its sigmas" in found.notes[0]
    _, nameless = Stepper(opened(), model, "a", 3, branches=[]).alone()
    assert sum(nameless.computed) == 0
    assert "did not say whose rows" in nameless.notes[0]


def test_an_obstacle_holds_even_when_forced(model: Model) -> None:
    user = Stepper(opened(), model, "a", 3, cache=BALANCED.model_copy(update={"force": True}))
    user.schedule = user.schedule.model_copy(update={"objection": "tiles may be several pictures."})
    _, found = user.alone()
    assert found.notes == ["Step cache off: tiles may be several pictures."]
    assert found.values == {}


def test_a_model_that_is_unloaded_in_between_is_let_go(model: Model) -> None:
    accounts = opened()
    first = load(MODEL, dtype=torch.float32, device=torch.device("cpu"))
    user = Stepper(accounts, first, "a", 3)
    for index in range(5):
        user.step(index)
    gone = weakref.ref(first)
    user.model = model
    del first
    gc.collect()
    assert gone() is None, "the open run kept the model alive"
    for index in range(5, STEPS):
        user.step(index)
    found = user.close()
    assert sum(found.computed) + sum(found.reused) == 2 * STEPS
    assert found.computed[5] == 2
    assert any("loaded anew" in note for note in found.notes)


def test_the_budget_is_kept_and_said(model: Model) -> None:
    caches = Caches(CacheConfig(budget=1))
    found = report(sampled(request(BALANCED), model, caches))
    assert sum(found.reused) == 0
    assert any("OUTBOARD_CACHE_BUDGET" in note for note in found.notes)


def test_an_account_of_no_cache_reports_none(model: Model) -> None:
    account = Account("digits", "flux1", "float32", torch.device("cpu"))
    predict(harness.predict("r"), model, BlobStore(0), account)
    assert account.report(1, 0).cache is None
