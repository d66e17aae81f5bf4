"""Draws a digit in this process: the engine's loader, denoise loop and digits model, without the wire."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from ..models.loader import load
from ..models.model import Model
from ..sampling.call import Call
from ..sampling.conditioning import Conditioning
from ..sampling.flow import Flow
from ..sampling.guidance import cfg_denoiser
from ..sampling.loop import SampleRequest, sample
from ..sampling.noise import initial_noise
from ..sampling.samplers import find_sampler
from ..sampling.schedules import discrete_flow_table, simple_sigmas
from .assets import LATENT_SHAPE, MODEL
from .digits import decode, prompt, to_graph_space

FLOW = Flow(multiplier=1.0)
"""FLUX.1-schnell's: sigma is the timestep, and the schedule is not shifted."""


def digit_sigmas(steps: int, sampler: str = "euler") -> Tensor:
    """The `simple` sigmas of `steps` steps, [steps + 1] fp32, as ComfyUI makes them for this model."""
    drop = find_sampler(sampler, {}).drops_penultimate
    return simple_sigmas(discrete_flow_table(1.0, FLOW.multiplier), steps, drop_penultimate=drop)


def draw(
    digit: int | None,
    seed: int,
    steps: int = 20,
    cfg: float = 4.0,
    *,
    sampler: str = "euler",
    model: Model | None = None,
) -> Tensor:
    """A picture [32, 32] fp32 in [0, 1] of `digit`; equal seeds, equal pictures. None: the empty prompt.

    `model` is a digits model in another dtype, on another device or altered; by default `shipped_model()`.
    """
    model = model or shipped_model()

    def predict_x0(x: Tensor, sigma: Tensor, conditioning: Conditioning, _: Call) -> Tensor:
        return FLOW.denoised(x, model.predict(x, FLOW.timestep(sigma), conditioning).float(), sigma)

    noise = initial_noise((1, *LATENT_SHAPE), seed).to(model.device)
    request = SampleRequest(
        sampler=sampler,
        sigmas=digit_sigmas(steps, sampler),
        noise=noise,
        latent=torch.zeros_like(noise),
        seed=seed,
        flow=FLOW,
    )
    denoiser = cfg_denoiser(predict_x0, prompt(digit), prompt(None), cfg=cfg, rows=1)
    return decode(to_graph_space(sample(request, denoiser)).cpu())[0]


@lru_cache(maxsize=1)
def shipped_model() -> Model:
    """The model in this package, fp32 on the CPU, loaded once."""
    return load(MODEL, dtype=torch.float32, device=torch.device("cpu"))
