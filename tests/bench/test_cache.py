from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from cache.networks import network
from outboard.engine.bench import cache as bench
from outboard.engine.bench.cache import Subject, accuracy, cached, digits_subject, plain, psnr
from outboard.engine.bench.row import Row
from outboard.engine.cache.controller import installed
from outboard.engine.cache.presets import preset


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> Iterator[Subject]:
    """A FLUX.1 of six blocks in the place of the deep one."""
    model = network("flux1")
    given: dict[str, Any] = {
        "context": torch.zeros(1, 3, 24),
        "y": torch.zeros(1, 12),
        "guidance": torch.ones(1),
    }
    subject = Subject("24 blocks", model, torch.randn(1, 16, 4, 4), given)
    monkeypatch.setattr(bench, "deep_subject", lambda: subject)
    monkeypatch.setattr(bench, "PAIRS", 2)
    yield subject
    assert installed(model) is None


def test_rows_name_preset_model_and_steps(small: Subject) -> None:
    rows = list(bench.rows(1, steps=(8,), pictures=10))
    cases = {row.case for row in rows}
    assert cases >= {
        f"{name} {model} 8" for name in ("quality", "balanced", "fast") for model in ("digits", "24 blocks")
    }
    assert {row.metric for row in rows if row.case == "fast digits 8"} == {
        "speedup", "blocks", "psnr", "accuracy", "accuracy, gained"
    }  # fmt: skip
    assert all(isinstance(row, Row) for row in rows)


def test_each_preset_skips_what_it_promises_and_draws_the_digit() -> None:
    """Of every ten pictures none is lost at the presets' usual number of steps."""
    subject = digits_subject(10)
    full = plain(subject, 20)
    assert accuracy(full.latent) == 100
    for name, least in (("quality", 36.0), ("balanced", 30.0), ("fast", 26.0)):
        quick = cached(subject, 20, preset(name, "flux1", 20))
        assert quick.tally is not None
        assert quick.tally.hit_rate >= {"quality": 0.45, "balanced": 0.55, "fast": 0.65}[name]
        assert psnr(quick.latent, full.latent) > least
        assert accuracy(quick.latent) == 100
    assert installed(subject.model) is None


@pytest.mark.parametrize("steps", [8, 14, 40])
def test_presets_hold_at_numbers_of_steps_they_were_not_made_for(steps: int) -> None:
    subject = digits_subject(10)
    full = plain(subject, steps)
    for name, least in (("quality", 30.0), ("balanced", 24.0), ("fast", 20.0)):
        quick = cached(subject, steps, preset(name, "flux1", steps))
        assert psnr(quick.latent, full.latent) > least
        assert accuracy(quick.latent) >= accuracy(full.latent)


def test_equal_latents_are_infinitely_alike() -> None:
    assert psnr(torch.tensor([0.0, 1.0]), torch.tensor([0.0, 1.0])) == float("inf")
    assert psnr(torch.tensor([0.1, 1.1]), torch.tensor([0.0, 1.0])) == pytest.approx(20.0, abs=1e-3)
