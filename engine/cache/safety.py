"""When a run should not be cached although its settings could be: rules on the sampler, as data.

The other hazards need no rule, because state cannot be shared by accident: it belongs to one row of one
branch of one run, at one shape and one set of weights, and appears only after a complete forward.
"""

from __future__ import annotations

from collections.abc import Mapping

#: Samplers that add fresh noise at every step, unless one of `STRENGTHS` is 0.
FRESH_NOISE = frozenset(
    {
        "ddpm",
        "dpm_2_ancestral",
        "dpmpp_2m_sde",
        "dpmpp_2m_sde_gpu",
        "dpmpp_2m_sde_heun",
        "dpmpp_2m_sde_heun_gpu",
        "dpmpp_2s_ancestral",
        "dpmpp_2s_ancestral_cfg_pp",
        "dpmpp_3m_sde",
        "dpmpp_3m_sde_gpu",
        "dpmpp_sde",
        "dpmpp_sde_gpu",
        "er_sde",
        "euler_ancestral",
        "euler_ancestral_cfg_pp",
        "exp_heun_2_x0_sde",
        "lcm",
        "res_multistep_ancestral",
        "res_multistep_ancestral_cfg_pp",
        "sa_solver",
        "sa_solver_pece",
        "seeds_2",
        "seeds_3",
    }
)
STRENGTHS = ("eta", "s_noise")
#: Samplers that choose their own noise levels, so that no call has a known place among the steps.
OWN_LEVELS = frozenset({"dpm_adaptive", "dpm_fast"})
#: Options of otherwise deterministic samplers that make them add noise when above 0.
CHURN = "s_churn"


def objection(sampler: str, options: Mapping[str, object]) -> str:
    """Why a run with this sampler should not be cached, "" when nothing speaks against it."""
    if sampler in OWN_LEVELS:
        return f"Step cache off: {sampler} chooses its own noise levels, so no step can be told from another."
    if sampler in FRESH_NOISE and not any(_is_zero(options.get(strength)) for strength in STRENGTHS):
        return (
            f"Step cache off: {sampler} adds fresh noise at every step, which makes reused steps wrong. "
            "Take a deterministic sampler, or force the cache."
        )
    churn = options.get(CHURN)
    if isinstance(churn, int | float) and churn > 0:
        return (
            f"Step cache off: {sampler} adds fresh noise at every step (s_churn {churn:g}). Set s_churn to 0."
        )
    return ""


def _is_zero(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value == 0
