"""The stock nodes that change guidance: what each puts on a MODEL, and what that is as data."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from ..protocol.messages.guidance import (
    Apg,
    CfgNorm,
    CfgOverride,
    CfgZeroStar,
    EpsilonScaling,
    Fresca,
    Mahiro,
    Momentum,
    NormCfg,
    RenormCfg,
    RescaleCfg,
    ScoreRescaling,
    Tcfg,
    VideoCfg,
)
from ..protocol.torch import to_wire
from .recognition import Known, Values

BEFORE, COMBINE, AFTER = "sampler_pre_cfg_function", "sampler_cfg_function", "sampler_post_cfg_function"
WRAPPER = "predict_noise"


def _apg(values: Values) -> Apg:
    average, sigma, momentum = values["running_avg"], values["prev_sigma"], values["momentum"]
    state = Momentum()
    if momentum and torch.is_tensor(average) and sigma is not None:
        state = Momentum(average=to_wire(average.detach().float().cpu()), sigma=float(sigma))
    return Apg(eta=values["eta"], norm_threshold=values["norm_threshold"], momentum=momentum, state=state)


def _apg_limit(values: Values, shape: torch.Size) -> str:
    average = values["running_avg"]
    carried = bool(values["momentum"]) and torch.is_tensor(average)
    return "APG going on from another latent" if carried and average.shape != shape else ""


def _channels(values: Values) -> Any:
    return getattr(values["model"].model.diffusion_model, "in_channels", None)


def _renorm_limit(values: Values, shape: torch.Size) -> str:
    return _one_row("RenormCFG", values, shape) or (
        "" if isinstance(_channels(values), int) else "RenormCFG of this model"
    )


def _one_row(node: str, values: Values, shape: torch.Size) -> str:
    """Their code asks of each row what only one can answer, so that a batch fails in ComfyUI too."""
    return "" if shape[0] == 1 else f"{node} over a batch"


def _pictures(node: str, values: Values, shape: torch.Size) -> str:
    return "" if len(shape) == 4 or shape[0] == 1 else f"{node} over a batch of videos"


def _flow(values: Values, shape: torch.Size) -> str:
    return "" if values["is_flow"] is True else "RescaleCFG for another prediction"


TABLE: tuple[Known, ...] = (
    Known(
        WRAPPER,
        "CFGOverride",
        "nodes_custom_sampler",
        "execute.<locals>.predict_noise_wrapper",
        ("cfg", "sigma_hi", "sigma_lo"),
        ("2f89befb00ca609e",),
        lambda values: CfgOverride(scale=values["cfg"], start=values["sigma_hi"], end=values["sigma_lo"]),
    ),
    Known(
        BEFORE,
        "APG",
        "nodes_apg",
        "execute.<locals>.pre_cfg_function",
        ("eta", "momentum", "norm_threshold", "prev_sigma", "running_avg"),
        ("141bebf8a77dc060", "7ed5c1cc06ba343f"),
        _apg,
        ("project",),
        _apg_limit,
    ),
    Known(
        BEFORE,
        "TCFG",
        "nodes_tcfg",
        "execute.<locals>.tangential_damping_cfg",
        (),
        ("0361c5e57fccca01",),
        lambda values: Tcfg(),
        ("score_tangential_damping",),
    ),
    Known(
        BEFORE,
        "FreSca",
        "nodes_fresca",
        "execute.<locals>.custom_cfg_function",
        ("freq_cutoff", "scale_high", "scale_low"),
        ("1edbe032affd7bd6",),
        lambda values: Fresca(
            scale_low=values["scale_low"], scale_high=values["scale_high"], cutoff=values["freq_cutoff"]
        ),
        ("Fourier_filter",),
    ),
    Known(
        COMBINE,
        "RescaleCFG",
        "nodes_model_advanced",
        "patch.<locals>.rescale_cfg",
        ("is_flow", "multiplier"),
        ("7448011a33c41ba1",),
        lambda values: RescaleCfg(multiplier=values["multiplier"]),
        limit=_flow,
    ),
    Known(
        COMBINE,
        "CFGNorm",
        "nodes_cfg",
        "execute.<locals>.cfg_norm_pre",
        ("strength",),
        ("008cb9407e0a50a2",),
        lambda values: NormCfg(strength=values["strength"]),
    ),
    Known(
        COMBINE,
        "RenormCFG",
        "nodes_lumina2",
        "execute.<locals>.renorm_cfg_func",
        ("cfg_trunc", "model", "renorm_cfg"),
        ("5c77f290605154e6",),
        lambda values: RenormCfg(
            truncation=values["cfg_trunc"], limit=values["renorm_cfg"], channels=_channels(values)
        ),
        limit=_renorm_limit,
    ),
    Known(
        COMBINE,
        "VideoLinearCFGGuidance",
        "nodes_video_model",
        "patch.<locals>.linear_cfg",
        ("min_cfg",),
        ("6840e3d8cdb85294",),
        lambda values: VideoCfg(min_scale=values["min_cfg"], shape="linear"),
        limit=partial(_pictures, "VideoLinearCFGGuidance"),
    ),
    Known(
        COMBINE,
        "VideoTriangleCFGGuidance",
        "nodes_video_model",
        "patch.<locals>.linear_cfg",
        ("min_cfg",),
        ("47f1c0b62fb04593",),
        lambda values: VideoCfg(min_scale=values["min_cfg"], shape="triangle"),
        limit=partial(_pictures, "VideoTriangleCFGGuidance"),
    ),
    # Its empty conditioning must be processed first: guidance.py makes the record.
    Known(
        COMBINE,
        "PerpNeg",
        "nodes_perpneg",
        "execute.<locals>.cfg_function",
        ("neg_scale", "nocond"),
        ("7d5fedbfef4934bf",),
        None,
        ("perp_neg",),
    ),
    Known(
        AFTER,
        "CFGNorm",
        "nodes_cfg",
        "execute.<locals>.cfg_norm",
        ("strength",),
        ("6eb7fae1bfcaa715",),
        lambda values: CfgNorm(strength=values["strength"]),
    ),
    Known(
        AFTER,
        "CFGZeroStar",
        "nodes_cfg",
        "execute.<locals>.cfg_zero_star",
        (),
        ("8d1b394bf7b68993",),
        lambda values: CfgZeroStar(),
        ("optimized_scale",),
    ),
    Known(
        AFTER,
        "Mahiro",
        "nodes_mahiro",
        "execute.<locals>.mahiro_normd",
        (),
        ("94d413709a6382f9", "b8b1768364c40d4d"),
        lambda values: Mahiro(),
    ),
    Known(
        AFTER,
        "EpsilonScaling",
        "nodes_eps",
        "execute.<locals>.epsilon_scaling_function",
        ("scaling_factor",),
        ("8cbc730a48026bf5",),
        lambda values: EpsilonScaling(factor=values["scaling_factor"]),
    ),
    Known(
        AFTER,
        "TemporalScoreRescaling",
        "nodes_eps",
        "execute.<locals>.temporal_score_rescaling",
        ("tsr_k", "tsr_variance"),
        ("248a004188c6607c",),
        lambda values: ScoreRescaling(k=values["tsr_k"], variance=values["tsr_variance"]),
        ("compute_tsr_rescaling_factor", "sigma_to_half_log_snr"),
        partial(_one_row, "TemporalScoreRescaling"),
    ),
)
