"""Every sampler of the engine draws what stock ComfyUI draws, with and without guidance."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from comfyui.graphs import DIGITS, ERNIE, FLUX, Graph, Link, Subject, sampled
from comfyui.pairs import Build, Pair

pytestmark = [pytest.mark.comfyui, pytest.mark.timeout(300)]

SAMPLERS = ("euler", "euler_ancestral", "heun", "dpmpp_2m", "res_multistep", "lcm", "ddim", "uni_pc")
MORE = (
    *("dpm_2", "dpm_fast", "dpmpp_2s_ancestral", "dpmpp_sde", "dpmpp_3m_sde_gpu"),
    *("ddpm", "deis", "er_sde", "seeds_3", "sa_solver"),
)
Compare = Callable[[Subject, Build, str], Pair]


def over(subject: Subject, **widgets: Any) -> Build:
    def build(graph: Graph, model: Link) -> Link:
        texts = subject.text(graph, 1), subject.text(graph, 2)
        return sampled(graph, model, *texts, subject.latent(graph), steps=subject.steps, **widgets)

    return build


@pytest.mark.parametrize("cfg", [1.0, 4.0])
@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("subject", [DIGITS, FLUX], ids=["digits", "flux"])
def test_a_sampler_gives_the_latent_of_stock_comfyui(
    compare: Compare, subject: Subject, sampler: str, cfg: float
) -> None:
    pair = compare(subject, over(subject, sampler_name=sampler, cfg=cfg), "whole_loop")
    assert pair.report["sampler"] == sampler


@pytest.mark.parametrize("sampler", MORE)
def test_a_sampler_of_any_kind_runs_whole(compare: Compare, sampler: str) -> None:
    pair = compare(FLUX, over(FLUX, sampler_name=sampler, cfg=4.0), "whole_loop")
    assert pair.report["sampler"] == sampler


@pytest.mark.parametrize("sampler", ["euler", "euler_ancestral", "uni_pc"])
def test_ernie_gives_the_latent_of_stock_comfyui(compare: Compare, sampler: str) -> None:
    compare(ERNIE, over(ERNIE, sampler_name=sampler, cfg=4.0), "whole_loop")


@pytest.mark.parametrize("scheduler", ["beta", "karras", "sgm_uniform"])
def test_any_scheduler_travels_as_its_sigmas(compare: Compare, scheduler: str) -> None:
    compare(FLUX, over(FLUX, scheduler=scheduler), "whole_loop")


@pytest.mark.parametrize("sampler", ["euler_cfg_pp", "dpmpp_2m_cfg_pp", "res_multistep_ancestral_cfg_pp"])
@pytest.mark.parametrize("subject", [FLUX, ERNIE], ids=["flux", "ernie"])
def test_a_sampler_the_engine_lacks_runs_step_by_step(
    compare: Compare, subject: Subject, sampler: str
) -> None:
    pair = compare(subject, over(subject, sampler_name=sampler, cfg=4.0), "per_step")
    assert pair.report["reason"] == f"sampler {sampler}"
    assert pair.report["steps"] > 0


def test_texts_of_two_lengths_are_computed_one_after_the_other(compare: Compare) -> None:
    def build(graph: Graph, model: Link) -> Link:
        texts = FLUX.text(graph, 1, tokens=9), FLUX.text(graph, 2, tokens=5)
        return sampled(graph, model, *texts, FLUX.latent(graph), cfg=4.0)

    pair = compare(FLUX, build, "whole_loop")
    assert pair.report["forwards"] == 2 * pair.report["steps"]
