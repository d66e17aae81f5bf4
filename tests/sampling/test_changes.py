"""Each change by what it promises; that they are ComfyUI's own is compared in tests/comfyui."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from outboard.engine.sampling.changes.after import cfg_norm, cfg_zero_star, epsilon_scaling, score_rescaling
from outboard.engine.sampling.changes.before import AdaptiveProjection, fresca, tcfg
from outboard.engine.sampling.changes.combine import (
    norm_cfg,
    perpendicular,
    renorm_cfg,
    rescale_cfg,
    video_cfg,
)
from outboard.engine.sampling.changes.moment import Moment
from outboard.engine.sampling.flow import Flow
from outboard.protocol.messages.guidance import (
    Apg,
    CfgNorm,
    CfgZeroStar,
    EpsilonScaling,
    Fresca,
    NormCfg,
    RenormCfg,
    RescaleCfg,
    ScoreRescaling,
    Tcfg,
    VideoCfg,
)


def noise(seed: int) -> Tensor:
    return torch.randn(2, 4, 8, 6, generator=torch.Generator().manual_seed(seed))


def moment(scale: float = 4.0, sigma: float = 0.5) -> Moment:
    def predict(_: object) -> Tensor:
        raise AssertionError("no change here asks for more")

    return Moment(noise(1), torch.tensor(sigma), scale, noise(2), noise(3), Flow(1.0), predict)


def apg(**changes: float) -> AdaptiveProjection:
    fields = {"eta": 1.0, "norm_threshold": 0.0, "momentum": 0.0, **changes}
    return AdaptiveProjection(Apg(**fields))  # type: ignore[arg-type]


def close(one: Tensor, two: Tensor) -> bool:
    return torch.allclose(one, two, rtol=1e-5, atol=1e-5)


def test_rescaling_gives_the_positives_spread() -> None:
    now = moment()
    whole = rescale_cfg(RescaleCfg(multiplier=1.0), now)
    assert close(whole.std(dim=(1, 2, 3)), now.positive.std(dim=(1, 2, 3)))
    assert close(rescale_cfg(RescaleCfg(multiplier=0.0), now), now.guided)


def test_norms_are_those_of_the_positive_pixel_by_pixel() -> None:
    now = moment()
    x0 = norm_cfg(NormCfg(strength=1.0), now)
    assert close((now.x - x0).norm(dim=1), (now.x - now.positive).norm(dim=1))
    assert close(norm_cfg(NormCfg(strength=0.0), now), now.guided)
    limited = cfg_norm(CfgNorm(strength=1.0), now, now.guided)
    assert bool((limited.norm(dim=1) <= now.positive.norm(dim=1) + 1e-5).all())


def test_renormed_guidance_is_cut_above_a_sigma_and_beyond_a_length() -> None:
    now = moment()
    assert torch.equal(renorm_cfg(RenormCfg(truncation=0.5, limit=1.0, channels=4), now), now.positive)
    x0 = renorm_cfg(RenormCfg(truncation=0.6, limit=1.0, channels=4), now)
    assert close(x0.flatten(1).norm(dim=1), now.positive.flatten(1).norm(dim=1))
    free = renorm_cfg(RenormCfg(truncation=0.6, limit=0.0, channels=3), now)
    assert torch.equal(free[:, :3], now.guided[:, :3])
    assert torch.equal(free[:, 3:], now.positive[:, 3:])


@pytest.mark.parametrize(("shape", "scales"), [("linear", [2.0, 4.0]), ("triangle", [2.0, 2.0])])
def test_each_row_has_a_scale_of_its_own(shape: str, scales: list[float]) -> None:
    now = moment()
    x0 = video_cfg(VideoCfg.model_validate({"min_scale": 2.0, "shape": shape}), now)
    for row, scale in enumerate(scales):
        assert close(x0[row], replace(now, scale=scale).guided[row])


def test_perpendicular_guidance_ignores_a_negative_that_is_parallel() -> None:
    empty, towards = noise(4), noise(5)
    x0 = perpendicular(empty + towards, empty + 0.7 * towards, empty, 3.0, 1.0)
    assert close(x0, empty + 3.0 * towards)


def test_zero_star_of_a_parallel_negative_is_its_own_multiple() -> None:
    now = moment()
    parallel = replace(now, negative=now.x - (now.x - now.positive) / 2)
    x0 = cfg_zero_star(CfgZeroStar(), parallel, parallel.guided)
    assert close(x0, 2 * parallel.negative + 4.0 * (parallel.positive - 2 * parallel.negative))


def test_epsilon_is_divided() -> None:
    now = moment()
    assert close(
        now.x - epsilon_scaling(EpsilonScaling(factor=2.0), now, now.guided), (now.x - now.guided) / 2
    )


@pytest.mark.parametrize(("k", "sigma"), [(1.0, 0.5), (0.9, 1.0), (0.9, 0.0)])
def test_a_score_that_needs_no_rescaling_stays(k: float, sigma: float) -> None:
    now = moment(sigma=sigma)
    assert score_rescaling(ScoreRescaling(k=k, variance=1.0), now, now.guided) is not now.x
    assert torch.equal(score_rescaling(ScoreRescaling(k=k, variance=1.0), now, now.guided), now.guided)


def test_a_score_is_rescaled_by_the_noise_ratio() -> None:
    now = moment(sigma=0.25)
    ratio = (9 * 2 + 1) / (9 * 2 / 0.9 + 1)
    expected = (1 - ratio) * now.x / 0.75 + ratio * now.guided
    assert close(score_rescaling(ScoreRescaling(k=0.9, variance=2.0), now, now.guided), expected)


def test_damping_leaves_the_negative_on_the_main_direction() -> None:
    now = moment()
    damped = tcfg(Tcfg(), now)
    assert torch.equal(damped.positive, now.positive)
    again = tcfg(Tcfg(), replace(now, positive=damped.negative, negative=damped.negative))
    assert close(again.negative, damped.negative)


def test_equal_factors_scale_the_whole_guidance() -> None:
    now = moment()
    both = fresca(Fresca(scale_low=1.5, scale_high=1.5, cutoff=2), now)
    assert close(both.positive - both.negative, 1.5 * (now.positive - now.negative))


def test_a_cutoff_beyond_the_spectrum_makes_every_frequency_low() -> None:
    now = moment()
    low = fresca(Fresca(scale_low=1.0, scale_high=9.0, cutoff=100), now)
    assert close(low.positive, now.positive)


def test_projection_with_eta_one_is_plain_guidance_plus_one() -> None:
    now = moment()
    assert close(apg()(now).guided, now.negative + (now.positive - now.negative) * (4.0 + 1.0))


def test_projection_without_eta_is_perpendicular_to_the_positive() -> None:
    now = moment()
    turned = apg(eta=0.0)(now).positive - now.negative - (now.positive - now.negative) / 4.0
    assert float((turned * now.positive).sum((1, 2, 3)).abs().max()) < 1e-4


def test_a_threshold_limits_the_guidance() -> None:
    now = moment(scale=1e9)
    turned = apg(norm_threshold=0.5)(now).positive - now.negative
    assert close(turned.flatten(1).norm(dim=1), torch.full((2,), 0.5))


def test_momentum_adds_up_until_sigma_rises() -> None:
    running, now = apg(momentum=0.5), moment()
    guidance = now.positive - now.negative
    for sigma, factor in ((0.9, 1.0), (0.5, 1.5), (0.5, 1.75), (0.9, 1.0)):
        running(replace(now, sigma=torch.tensor(sigma)))
        assert running.average is not None
        assert close(running.average, guidance * factor)
