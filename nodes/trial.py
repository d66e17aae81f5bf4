"""Whether the engine's sampler is this ComfyUI's: both run once over a function that stands for the model.

Versions of ComfyUI change a sampler's noise or its last step and keep its name, so the name proves nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from ..engine.sampling.flow import Flow
from ..engine.sampling.loop import SampleRequest, sample
from ..engine.sampling.samplers import SAMPLERS
from ..protocol.messages.common import FlowSampling, Scalar

#: To zero, to a level above it, and from the middle: a short one of every kind.
SCHEDULES = ((1.0, 0.8, 0.5, 0.2, 0.0), (1.0, 0.8, 0.5, 0.2), (0.7, 0.5, 0.2, 0.0))
SHAPE = (1, 2, 4, 4)
SEED = 5
#: Of the largest value. Two ways to round stay far below it, another noise or formula far above.
TOLERANCE = 1e-3
#: These ask for more than a prediction, which the function does not give.
OUT_OF_REACH = "_cfg_pp"

Key = tuple[str, str, str]


class Trials:
    """Remembers what came of each sampler, with its options, on each kind of device."""

    def __init__(self) -> None:
        self._agreed: dict[Key, bool] = {}

    def agree(
        self,
        guider: Any,
        sampler: Any,
        name: str,
        options: Mapping[str, Scalar],
        flow: FlowSampling,
        device: Any,
    ) -> bool:
        """Whether `sampler`, ComfyUI's object, and the engine's `name` give the same latents on `device`."""
        if name not in SAMPLERS or name.endswith(OUT_OF_REACH):
            return True
        key = (name, repr(sorted(options.items())), device.type)
        if key not in self._agreed:
            ours = Flow(flow.multiplier, flow.noise_scale, flow.shift)
            self._agreed[key] = all(
                _agree(guider, sampler, name, options, ours, torch.tensor(sigmas, device=device))
                for sigmas in SCHEDULES
            )
        return self._agreed[key]


TRIALS = Trials()


class Stand:
    """A guider whose prediction is a plain function; everything else is the real one's."""

    def __init__(self, guider: Any) -> None:
        self._guider = guider

    def __getattr__(self, name: str) -> Any:
        return getattr(self._guider, name)

    def __call__(self, x: torch.Tensor, sigma: torch.Tensor, **keywords: Any) -> torch.Tensor:
        return _x0(x, sigma)


def _x0(x: torch.Tensor, sigma: torch.Tensor) -> torch.Tensor:
    return torch.sin(2 * x) * (1 - 0.5 * sigma.reshape(-1)[0].to(x))


def _agree(
    guider: Any, sampler: Any, name: str, options: Mapping[str, Scalar], flow: Flow, sigmas: torch.Tensor
) -> bool:
    device = sigmas.device
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(SEED)
        noise = torch.randn(SHAPE).to(device)
        latent = torch.linspace(-1, 1, noise.numel(), device=device).reshape(SHAPE)
        request = SampleRequest(
            name, sigmas, noise.clone(), latent.clone(), SEED, flow, options, noise_device=device.type
        )
        ours = sample(request, _x0)
        extra = {"model_options": {}, "seed": SEED}
        stock = sampler.sample(Stand(guider), sigmas, extra, None, noise, latent, None, True)
    return bool((ours - stock).abs().max() <= TOLERANCE * stock.abs().max())
