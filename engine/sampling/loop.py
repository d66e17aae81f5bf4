"""One denoise loop: noise the latent, run a sampler over a denoiser, take the latent back out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ...protocol.errors import InvalidRequestError
from .flow import Flow
from .inpaint import Inpaint, inpaint_denoiser
from .noise import inpaint_noise
from .samplers import Option, Sampler, find_sampler
from .step import Callback, Denoiser, ignore_step


@dataclass(frozen=True, eq=False)
class SampleRequest:
    """Everything a denoise loop needs besides the model.

    `noise` and `latent` are [B, C, ...] on the device to sample on, the latent in the model's own scale
    (zeros for text to image); `sigmas` falls from the first noise level to the last, usually 0;
    `noise_device` is the type of ComfyUI's device (see `NoiseSource`).
    """

    sampler: str
    sigmas: Tensor
    noise: Tensor
    latent: Tensor
    seed: int
    flow: Flow
    options: Mapping[str, Option] = field(default_factory=dict)
    inpaint: Inpaint | None = None
    noise_device: str = ""


@torch.no_grad()
def sample(request: SampleRequest, predict_x0: Denoiser, *, callback: Callback = ignore_step) -> Tensor:
    """Return the sampled latent, float32, of the request's shape; without sigmas, the latent as it came.

    `predict_x0` is the guided denoiser; `callback` runs once per step and may raise `CancelledError`.
    Raises `UnsupportedRequestError` or `InvalidRequestError` before the first model call.
    """
    sampler = find_sampler(request.sampler, request.options)
    _check_shapes(request)
    if request.sigmas.numel() == 0:
        return request.latent
    # Sigmas stay on the CPU: the solvers branch on them, and a GPU would be waited for at every step.
    sigmas = sampler.ended(request.sigmas.to("cpu", torch.float32))
    noise, latent, flow = request.noise.float(), request.latent.float(), request.flow
    x = sampler.function(
        _held(request, sampler, predict_x0, sigmas),
        flow.noise_scaling(sigmas[0], noise, latent),
        sigmas,
        callback=callback,
        noise=sampler.noise_source(request.seed, noise, sigmas, request.noise_device),
        flow=flow,
        **request.options,
    )
    return flow.inverse_noise_scaling(sigmas[-1], x)


def _held(request: SampleRequest, sampler: Sampler, model: Denoiser, sigmas: Tensor) -> Denoiser:
    if request.inpaint is None:
        return model
    noise = request.noise.float()
    if sampler.random_inpaint_noise:
        noise = inpaint_noise(request.seed, noise)
    latent = request.latent.float()
    return inpaint_denoiser(
        model, request.inpaint, latent=latent, noise=noise, sigmas=sigmas, flow=request.flow
    )


def _check_shapes(request: SampleRequest) -> None:
    shape = tuple(request.latent.shape)
    tensors = {"noise": request.noise}
    if request.inpaint is not None:
        tensors["mask"] = request.inpaint.mask
    for name, tensor in tensors.items():
        if tuple(tensor.shape) != shape:
            raise InvalidRequestError(
                f"The {name} has shape {list(tensor.shape)} and the latent {list(shape)}; they must agree."
            )
    if request.sigmas.ndim != 1 or not bool(torch.isfinite(request.sigmas).all()):
        raise InvalidRequestError("The sigmas must be one list of finite numbers.")
