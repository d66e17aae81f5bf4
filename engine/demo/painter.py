"""Draws digits through a running engine: a graph's loader, sampler and decoder, as one plain client."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ...protocol.client import Client
from ...protocol.errors import ProtocolError
from ...protocol.messages import Message
from ...protocol.messages.client import Run
from ...protocol.messages.common import Branch, FlowSampling, ModelRef, Report
from ...protocol.messages.engine import Result, Step
from ...protocol.messages.guidance import Cfg
from ...protocol.torch import from_wire, pack_tree, to_wire
from ..models.header import read_header
from ..sampling.noise import initial_noise
from .assets import LATENT_SHAPE, MODEL, MODEL_NAME
from .digits import decode, prompt, to_graph_space
from .draw import FLOW, digit_sigmas

OnStep = Callable[[Step], None]


@dataclass(frozen=True)
class Drawing:
    """`picture` [32, 32] fp32 in [0, 1], and what the engine says of the run that made it."""

    picture: Tensor
    report: Report


def paint(
    client: Client, digit: int, seed: int, *, steps: int, cfg: float, on_step: OnStep | None = None
) -> Drawing:
    """Have the engine draw `digit`; the same picture as `draw` makes in this process, to rounding."""

    def on_event(event: Message) -> None:
        if on_step is not None and isinstance(event, Step):
            on_step(event)

    result = client.request(_run(digit, seed, steps, cfg), on_event=on_event)
    if not isinstance(result, Result):
        raise ProtocolError(f"a run ended in {result.type!r} instead of a result")
    latent = from_wire(result.latent, writable=True)
    return Drawing(decode(to_graph_space(latent))[0], result.report)


def _run(digit: int, seed: int, steps: int, cfg: float) -> Run:
    header = read_header(MODEL)
    noise = initial_noise((1, *LATENT_SHAPE), seed)
    return Run(
        model=ModelRef(name=MODEL_NAME, size=header.size, digest=header.digest),
        sampling=FlowSampling(multiplier=FLOW.multiplier),
        sampler="euler",
        sigmas=to_wire(digit_sigmas(steps)),
        noise=to_wire(noise),
        latent=to_wire(torch.zeros_like(noise)),
        seed=seed,
        guidance=Cfg(scale=cfg),
        positive=[Branch(id="positive", conditioning=pack_tree(prompt(digit)))],
        negative=[Branch(id="negative", conditioning=pack_tree(prompt(None)))],
    )
