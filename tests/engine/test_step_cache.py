"""The step cache on a rank: off is never, users never meet, and a run that ends leaves nothing."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import harness
from cached_runs import BALANCED, STEPS, THRESHOLD, report, request, sampled, wrapped
from outboard.engine.cache.choice import Choice
from outboard.engine.cache.config import CacheConfig
from outboard.engine.models.model import Model
from outboard.engine.rank.peers import Alone
from outboard.engine.rank.run import loop_of
from outboard.engine.rank.step_cache import Caches
from outboard.protocol.errors import CancelledError, InvalidRequestError
from outboard.protocol.messages.cache import CacheSettings
from outboard.protocol.messages.guidance import CfgOverride
from outboard.protocol.torch import to_wire

BOTH = pytest.mark.parametrize("settings", [BALANCED, THRESHOLD], ids=["mask", "threshold"])


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
    values: dict[str, Any] = {
        "scm_preset": "medium",
        "steps_computation_policy": "static",
        "Fn_compute_blocks": 1,
    }
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
        found = cached.report(Alone())
        cached.forget()
        assert found is not None
        assert found.preset == expected


def test_another_size_next_is_a_run_of_its_own(model: Model) -> None:
    caches = Caches(CacheConfig())
    large = torch.randn(1, 16, 12, 8, generator=torch.Generator().manual_seed(2))
    fields: dict[str, Any] = {"noise": to_wire(large), "latent": to_wire(torch.zeros_like(large))}
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
    ancestral: dict[str, Any] = {"sampler": "euler_ancestral"}
    kept = report(sampled(request(BALANCED, **ancestral), model))
    assert (kept.values, kept.reused) == ({}, [])
    assert "fresh noise" in kept.notes[0]
    forced = CacheSettings(preset="balanced", force=True)
    found = report(sampled(request(forced, **ancestral), model))
    assert sum(found.reused) > 0
    assert found.notes[0].startswith("Forced against this: ")


def test_the_budget_is_kept_and_said(model: Model) -> None:
    caches = Caches(CacheConfig(budget=1))
    found = report(sampled(request(BALANCED), model, caches))
    assert sum(found.reused) == 0
    assert any("OUTBOARD_CACHE_BUDGET" in note for note in found.notes)
