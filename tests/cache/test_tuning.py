from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import inf
from pathlib import Path

import pytest

from outboard.engine.cache.masks import FEWEST_STEPS
from outboard.engine.cache.plan import Plan
from outboard.engine.cache.settings import Settings
from outboard.engine.cache.tuning import Point, choose, coarse, finer, front, sweep, to_yaml
from outboard.engine.cache.yaml_form import dump, read_file

ANY = Settings(Fn_compute_blocks=1)


def point(speedup: float, psnr: float, blocks: float = 0.5, accuracy: float | None = None) -> Point:
    return Point(replace(ANY, residual_diff_threshold=speedup / 10), speedup, psnr, blocks, accuracy)


def everything(steps: int) -> list[Settings]:
    first = coarse(steps)
    return [*first, *(near for settings in first for near in finer(settings))]


def read_back(text: str, folder: Path) -> Settings:
    path = folder / "tuned.yaml"
    path.write_text(text, encoding="utf-8")
    choice = read_file(path)
    assert choice is not None
    return choice.settings("flux1", 28)


@pytest.mark.parametrize("steps", [2, 4, 8, 28, 50])
def test_every_setting_that_is_tried_fits_the_run(steps: int) -> None:
    tried = coarse(steps)
    assert len(set(tried)) == len(tried)
    assert any(settings.masked for settings in tried) == (steps >= FEWEST_STEPS)
    for settings in everything(steps):
        assert Plan.of(settings, steps, 4).notes == () or settings.max_warmup_steps >= steps


def test_the_grid_has_both_policies_every_mask_all_orders_and_limits() -> None:
    tried = everything(28)
    assert {settings.scm_preset for settings in tried} == {"none", "slow", "medium", "fast", "ultra"}
    assert {settings.static for settings in tried if settings.masked} == {True, False}
    assert {settings.skip_fn_on_static for settings in tried if settings.static} == {True, False}
    assert {settings.taylorseer_order for settings in tried} == {0, 1, 2}
    assert {settings.max_continuous_cached_steps for settings in tried} >= {-1, 1, 3}
    assert len({settings.max_warmup_steps for settings in tried if not settings.masked}) == 3


def test_every_setting_is_the_same_after_a_file(tmp_path: Path) -> None:
    own = (
        Settings(),
        Settings(steps_computation_mask=(1, 0, 1), max_accumulated_residual_diff_threshold=0.5),
        Settings(scm_compute_bins=(2, 1), scm_cache_bins=(1, 2), steps_computation_policy="static"),
        Settings(enable_encoder_taylorseer=False, taylorseer_order=2, warmup_interval=2, max_cached_steps=9),
    )
    for settings in (*own, *everything(28)):
        assert read_back(dump(settings), tmp_path) == settings


def test_a_file_has_the_chosen_settings_and_the_front_as_comments(tmp_path: Path) -> None:
    points = [point(3, 30), point(2, 40)]
    text = to_yaml(points, points[1], ["model: 28 steps"])
    assert read_back(text, tmp_path) == points[1].settings
    comments = [line for line in text.splitlines() if line.startswith("#")]
    assert comments[0] == "# model: 28 steps"
    assert sum("3.00x" in line for line in comments) == 1
    assert comments[-1].startswith("#  2.00x    40.0 dB")


def test_the_front_has_what_nothing_else_beats_the_fastest_first() -> None:
    fast, good, worse = point(3, 30), point(2, 40), point(1.9, 39)
    assert front([worse, good, fast]) == [fast, good]
    assert front([point(2, 40), point(2, 40)]) == [point(2, 40)] * 2


def test_what_skipped_nothing_is_not_on_the_front() -> None:
    assert front([point(1.01, inf, blocks=1.0), point(1.5, 40)]) == [point(1.5, 40)]
    assert front([point(1.01, inf, blocks=1.0)]) == []


def test_a_digit_less_can_be_worth_a_decibel() -> None:
    points = [point(2, 41, accuracy=90), point(2, 40, accuracy=100)]
    assert len(front(points)) == 2


@pytest.mark.parametrize(
    ("psnr", "accuracy", "speedup"), [(30, None, 3), (35, None, 2), (30, 100, 2), (60, None, 2)]
)
def test_chosen_is_the_fastest_that_is_good_enough_else_the_best(
    psnr: float, accuracy: float | None, speedup: float
) -> None:
    points = [point(3, 30, accuracy=95), point(2, 40, accuracy=100)]
    chosen = choose(points, psnr, accuracy)
    assert chosen is not None and chosen.speedup == speedup
    assert choose([], psnr) is None


def test_of_two_about_as_fast_the_nearer_to_the_original_is_chosen() -> None:
    fast, near = point(2.40, 31), point(2.35, 38)
    assert choose([fast, near], 30) == near
    assert choose([fast, point(2.2, 38)], 30) == fast


def made_up(seen: list[Settings]) -> Callable[[Settings], Point]:
    """Faster with the threshold and worse with its square; masks are slow."""

    def measure(settings: Settings) -> Point:
        seen.append(settings)
        threshold = 0.01 if settings.masked else settings.residual_diff_threshold
        return Point(settings, 1 + threshold, 50 - 100 * threshold**2, 0.5)

    return measure


def test_the_sweep_goes_finer_around_the_front_and_measures_nothing_twice() -> None:
    seen: list[Settings] = []
    points = list(sweep(made_up(seen), 28))
    assert [found.settings for found in points] == seen
    assert len(set(seen)) == len(seen)
    assert seen[: len(coarse(28))] == coarse(28)
    assert max(settings.residual_diff_threshold for settings in seen) > 0.5


def test_the_sweep_begins_nothing_when_its_time_is_over() -> None:
    seen: list[Settings] = []
    assert len(list(sweep(made_up(seen), 28, lambda: len(seen) < 3))) == 3
    assert list(sweep(made_up(seen), 28, lambda: False)) == []
