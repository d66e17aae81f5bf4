"""One whole denoise loop: a Run message in, step events on the way, the latent and its report out."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ...protocol.errors import EngineError
from ...protocol.messages.cache import CacheReport
from ...protocol.messages.client import Run
from ...protocol.messages.engine import Step as StepEvent
from ...protocol.messages.guidance import Momentum
from ...protocol.torch import from_wire, to_wire
from ..models.model import Model
from ..sampling.call import Call, Forward
from ..sampling.flow import Flow
from ..sampling.guidance import Guide, GuidedDenoiser
from ..sampling.loop import SampleRequest, sample
from ..sampling.predictor import Predictor
from ..sampling.step import Step
from .blobs import BlobStore
from .conditioning import inpaint_of, own_tensor, with_concat
from .device import release_memory
from .guidance import guide_of, momenta_of
from .network import Rows, evaluate
from .peers import Peers
from .step_cache import CachedRun, Loop, uncached

Tell = Callable[[StepEvent], None]


@dataclass(eq=False)
class Watch:
    """What runs at every step: the cancel check, the step event, and an eye on numbers that are none.

    Whether each x0 was finite stays on the device until the end, so that no step waits for it.
    """

    check: Callable[[], None]
    tell: Tell
    preview: bool
    finite: list[Tensor] = field(default_factory=list)
    bytes_out: int = 0

    def __call__(self, step: Step) -> None:
        self.finite.append(torch.isfinite(step.x0).all())
        x0 = to_wire(step.x0.float()) if self.preview else None
        self.bytes_out += x0.nbytes if x0 else 0
        self.tell(StepEvent(index=step.index, total=step.total, sigma=step.sigma, x0=x0))
        self.check()

    def require_finite(self, latent: Tensor, dtype: torch.dtype) -> None:
        """Raise EngineError naming the first step whose x0, or else the result, has a NaN or an infinity."""
        if bool(torch.isfinite(latent).all()):
            return
        broken = [index for index, finite in enumerate(self.finite) if not bool(finite)]
        where = f"from step {broken[0] + 1} of {len(self.finite)} on" if broken else "after the last step"
        raise EngineError(
            f"The model computed NaN or infinity {where}, in {dtype}.",
            hint="Choose bfloat16 or float32 as the engine's dtype, and check LoRA strengths and cfg.",
        )


@dataclass(frozen=True, eq=False)
class Outcome:
    """What a loop gave: the latent (fp32), what its changes remember, and how much work it was."""

    latent: Tensor
    steps: int
    forwards: int
    seconds: float
    bytes_out: int
    splits: int = 0
    momenta: Sequence[Momentum] = ()
    cache: CacheReport | None = None


@dataclass(eq=False)
class PreparedLoop:
    """A run of which all that it brought has been found fit, and no step is made."""

    request: SampleRequest
    predictor: Predictor
    guide: Guide
    watch: Watch
    model: Model
    cached: CachedRun

    def sample(self, peers: Peers) -> Outcome:
        """Make all steps; the ranks of a group do so together."""
        denoiser = GuidedDenoiser(self.guide)
        began = time.perf_counter()
        latent = sample(self.request, denoiser, callback=self.watch).float().cpu()
        seconds = time.perf_counter() - began
        self.watch.require_finite(latent, self.model.dtype)
        return Outcome(
            latent,
            len(self.watch.finite),
            self.predictor.forwards,
            seconds,
            self.watch.bytes_out + latent.nbytes,
            self.predictor.splits,
            momenta_of(self.guide.changes),
            self.cached.report(peers),
        )


def prepare_loop(
    run: Run,
    model: Model,
    blobs: BlobStore,
    *,
    check: Callable[[], None],
    tell: Tell,
    cached: CachedRun | None = None,
) -> PreparedLoop:
    """What sampling `run` with `model` needs, on the device.

    `check` may raise CancelledError before each forward and after each step. Raises MissingBlobError,
    InvalidRequestError.
    """
    cached = cached or uncached()
    flow = Flow(run.sampling.multiplier, run.sampling.noise_scale, run.sampling.shift)
    request = _request(run, flow, model.device)
    predictor = Predictor(
        _forward(flow, model, check, cached),
        schedule=request.sigmas.tolist(),
        ragged=model.ragged,
        release=lambda: release_memory(model.device),
    )
    guide = guide_of(run, model, blobs, request.latent.shape, predictor, flow)
    return PreparedLoop(request, predictor, guide, Watch(check, tell, run.preview), model, cached)


def loop_of(run: Run) -> Loop:
    """What the step cache must know of `run`."""
    return Loop(run.sampler, run.sampler_options, from_wire(run.sigmas).float().reshape(-1).tolist())


def _request(run: Run, flow: Flow, device: torch.device) -> SampleRequest:
    latent = own_tensor(run.latent, device)
    return SampleRequest(
        sampler=run.sampler,
        sigmas=own_tensor(run.sigmas, torch.device("cpu")),
        noise=own_tensor(run.noise, device),
        latent=latent,
        seed=run.seed,
        flow=flow,
        options=run.sampler_options,
        inpaint=inpaint_of(run.mask, latent.shape, device),
        noise_device=run.generator,
    )


def _forward(flow: Flow, model: Model, check: Callable[[], None], cached: CachedRun) -> Forward:
    def forward(x: Tensor, sigma: Tensor, conditioning: Mapping[str, Any], call: Call) -> Tensor:
        check()
        whole, given = with_concat(x, conditioning)
        v = evaluate(model, Rows(whole, flow.timestep(sigma).float(), given, call), cached)
        return flow.denoised(x, v.float(), sigma)

    return forward
