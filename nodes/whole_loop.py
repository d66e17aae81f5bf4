"""The fast path: a sampler's whole denoise loop as one request, where eligibility.py allows it."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import comfy.model_sampling
import torch
from tqdm.auto import tqdm

from ..protocol.errors import UnsupportedRequestError
from ..protocol.messages import Message
from ..protocol.messages.client import Run
from ..protocol.messages.common import Differential, FlowSampling, Mask
from ..protocol.messages.engine import Step
from ..protocol.torch import from_wire, to_wire
from . import caching, refusals, sampler_name
from .eligibility import PREVIEW_MODULE, Loop, reason_against
from .inert import Reader
from .progress import LoadingProgress
from .remote import RemoteModel, Stepping
from .report import publish
from .trial import TRIALS


def sampler_sample(
    executor: Any,
    guider: Any,
    sigmas: torch.Tensor,
    extra_args: dict[str, Any],
    callback: Callable[..., Any] | None,
    noise: torch.Tensor,
    latent_image: torch.Tensor | None = None,
    denoise_mask: torch.Tensor | None = None,
    disable_pbar: bool = False,
) -> torch.Tensor:
    """A SAMPLER_SAMPLE wrapper: run the loop in the engine, or step by step here, and publish which and why.

    Returns the sampled latent in model space, like the sampler it wraps.
    """
    remote: RemoteModel = guider.inner_model.outboard
    latent = torch.zeros_like(noise) if latent_image is None else latent_image
    samplers = frozenset(remote.session.welcome.samplers)
    loop = Loop(
        guider, executor.class_obj, sigmas, extra_args, callback, noise, latent, denoise_mask, samplers
    )
    reads = Reader(guider.inner_model.diffusion_model)
    refusals.check_options(loop.transformer_options, reads)
    refusals.check_conds(guider.conds, reads)
    reason = reason_against(loop) or _differs(loop)
    if not reason:
        steps = Steps(loop, remote.ref.name, disable_pbar)
        try:
            return _run(loop, remote, steps)
        except UnsupportedRequestError as error:
            if steps.seen:
                raise
            reason = error.message
    if loop.settings.path == "whole_loop":
        raise UnsupportedRequestError(
            f"This sampler cannot run as a whole loop in the engine: {reason}.",
            hint="Set the path to auto in the Outboard Settings node.",
        )
    stepping = Stepping(
        reason,
        sampler_name.label_of(loop.sampler),
        caching.schedule_of(loop),
        caching.settings_of(loop.options),
    )
    with ExitStack() as runs:
        for model in _remotes(guider):
            runs.enter_context(model.stepping(stepping, publish))
        sampled: torch.Tensor = executor(
            guider, sigmas, extra_args, callback, noise, latent_image, denoise_mask, disable_pbar
        )
    return sampled


def _remotes(guider: Any) -> list[RemoteModel]:
    """The models a guider predicts with, its own first: its report is then the last to come."""
    held = [getattr(model, "outboard", None) for model in vars(guider).values()]
    others = [model for model in held if isinstance(model, RemoteModel)]
    return list(dict.fromkeys([guider.inner_model.outboard, *others]))


def _differs(loop: Loop) -> str:
    """Why a sampler that the engine knows by name is another one here."""
    name = sampler_name.name_of(loop.sampler, loop.samplers)
    options = sampler_name.plain_options(loop.sampler) or {}
    flow = _flow(loop.model_sampling)
    agreed = TRIALS.agree(loop.guider, loop.sampler, name, options, flow, loop.noise.device)
    return "" if agreed else f"sampler {name}, which this ComfyUI computes differently"


def _run(loop: Loop, remote: RemoteModel, steps: Steps) -> torch.Tensor:
    with steps:
        latent, result = remote.run(_request(loop, remote), steps)
    publish(result.report)
    loop.guided.keep(result.momenta)
    return latent.to(loop.noise.device)


def _request(loop: Loop, remote: RemoteModel) -> Run:
    rope = loop.transformer_options.get("rope_options")
    extra = {"rope_options": rope} if rope else {}
    return Run(
        model=remote.ref,
        settings=remote.settings,
        sampling=_flow(loop.model_sampling),
        sampler=sampler_name.name_of(loop.sampler, loop.samplers),
        sampler_options=sampler_name.plain_options(loop.sampler) or {},
        sigmas=_float(loop.sigmas),
        noise=_float(loop.noise),
        latent=_float(loop.latent),
        seed=loop.extra_args["seed"],
        **loop.guided.fields(extra, remote.intern),
        mask=_mask(loop),
        cache=caching.settings_of(loop.options),
        generator="cuda" if loop.noise.device.type == "cuda" else "cpu",
        preview=wants_x0(loop.callback),
        adapters=remote.session.adapt(remote.adapters),
    )


def _flow(sampling: Any) -> FlowSampling:
    return FlowSampling(
        multiplier=float(getattr(sampling, "multiplier", 1.0)),
        noise_scale=float(getattr(sampling, "noise_scale", 1.0)),
        shift=_shift(sampling),
    )


def _shift(sampling: Any) -> float:
    shift = float(sampling.shift)
    return math.exp(shift) if isinstance(sampling, comfy.model_sampling.ModelSamplingFlux) else shift


def _mask(loop: Loop) -> Mask | None:
    if loop.mask is None:
        return None
    differential = None
    strength = sampler_name.differential_strength(loop.options.get("denoise_mask_function"))
    if strength is not None:
        sampling = loop.model_sampling
        differential = Differential(
            strength=strength, sigma_min=float(sampling.sigma_min), sigma_max=float(sampling.sigma_max)
        )
    return Mask(mask=_float(loop.mask.expand_as(loop.noise)), differential=differential)


def _float(tensor: torch.Tensor) -> Any:
    return to_wire(tensor.detach().to("cpu", torch.float32))


def wants_x0(callback: Callable[..., Any] | None) -> bool:
    """Whether x0 of each step must come back: not when previews are off and no node keeps the last one."""
    if callback is None:
        return False
    closure = dict(zip(callback.__code__.co_freevars, callback.__closure__ or (), strict=True))
    if callback.__module__ != PREVIEW_MODULE or not {"previewer", "x0_output_dict"} <= closure.keys():
        return True
    return any(closure[name].cell_contents is not None for name in ("previewer", "x0_output_dict"))


class Steps:
    """Feeds the engine's step events to ComfyUI's callback, its console bar and the loading progress."""

    def __init__(self, loop: Loop, name: str, disable_bar: bool) -> None:
        self._loop = loop
        self._loading = LoadingProgress(name)
        self._bar = tqdm(total=len(loop.sigmas) - 1, disable=disable_bar or None)
        self.seen = 0

    def __enter__(self) -> Steps:
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.close()

    def __call__(self, event: Message) -> None:
        if not isinstance(event, Step):
            self._loading(event)
            return
        self.seen += 1
        self._bar.update()
        if self._loop.callback is not None:
            x0 = None if event.x0 is None else from_wire(event.x0).clone().to(self._loop.noise.device)
            # Stock callbacks leave their third argument, x, alone; x stays in the engine.
            self._loop.callback(event.index, x0, x0, event.total)
