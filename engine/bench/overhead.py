"""What the engine costs: a denoise loop through real processes over the same loop called bare in this one.

Both compute with the same model, threads and device, taking turns, at a size whose step takes 50 ms or more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache, partial
from statistics import median
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from ...protocol.client import Client
from ...protocol.errors import InternalError
from ...protocol.messages import Message
from ...protocol.messages.client import CloseRun, Predict, Run
from ...protocol.messages.common import Branch, FlowSampling, ModelRef
from ...protocol.messages.engine import Prediction, Result
from ...protocol.torch import from_wire, pack_tree, to_wire
from ..demo.assets import LATENT_SHAPE, MODEL, MODEL_NAME
from ..demo.digits import prompt
from ..launch import LaunchSpec, adopt_or_start
from ..models.header import read_header
from ..models.loader import load
from ..models.model import Model
from ..sampling.call import Call, Forward
from ..sampling.flow import Flow
from ..sampling.guidance import cfg_denoiser
from ..sampling.loop import SampleRequest, sample
from ..sampling.noise import initial_noise
from .row import Row

STEP_SECONDS = 0.05
SIDES = (16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
STEPS = 6
ROUNDS = 15
WHOLE_LOOP_TARGET, PER_STEP_TARGET = 1.02, 1.05
FLOW = Flow(multiplier=1.0)

Loop = Callable[[], Tensor]


@dataclass(frozen=True, eq=False)
class Case:
    """One loop's inputs: noise [1, 16, side, side] and a digit's conditioning."""

    noise: Tensor
    conditioning: Mapping[str, Tensor]

    @property
    def request(self) -> SampleRequest:
        latent = torch.zeros_like(self.noise)
        return SampleRequest("euler", torch.linspace(1, 0, STEPS + 1), self.noise, latent, 0, FLOW)


def rows(rounds: int = ROUNDS) -> Iterator[Row]:
    """Seconds per step of each path, and the median ratios over the bare loop with their targets."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        model = load(MODEL, dtype=torch.float32, device=device)
        case = _sized(model)
        with _client(device) as client:
            loops = {
                "bare": partial(_bare, model, case),
                "whole_loop": partial(_whole_loop, client, case),
                "per_step": partial(_per_step, client, case),
            }
            yield from _report(f"{case.noise.shape[-1]}x{case.noise.shape[-1]}", _measure(loops, rounds))
    finally:
        torch.set_num_threads(threads)


def _sized(model: Model) -> Case:
    """The smallest case whose bare step is long enough."""
    for side in SIDES:
        case = Case(initial_noise((1, LATENT_SHAPE[0], side, side), 0), prompt(3))
        if min(_seconds(partial(_bare, model, case)) for _ in range(3)) >= STEP_SECONDS:
            break
    return case


def _seconds(loop: Loop) -> float:
    """Seconds per step of one run."""
    began = perf_counter()
    loop()
    return (perf_counter() - began) / STEPS


def _loop(forward: Forward, case: Case, device: torch.device) -> Tensor:
    request = replace(
        case.request, noise=case.noise.to(device), latent=torch.zeros_like(case.noise).to(device)
    )
    denoiser = cfg_denoiser(forward, case.conditioning, None, cfg=1.0, rows=1)
    return sample(request, denoiser).cpu()


def _bare(model: Model, case: Case) -> Tensor:
    def forward(x: Tensor, sigma: Tensor, conditioning: Mapping[str, Any], _: Call) -> Tensor:
        v = model.predict(x, FLOW.timestep(sigma), conditioning)
        return FLOW.denoised(x, v.float(), sigma)

    return _loop(forward, case, model.device)


def _whole_loop(client: Client, case: Case) -> Tensor:
    request = case.request
    run = Run(
        model=_model(),
        sampling=FlowSampling(multiplier=FLOW.multiplier),
        sampler=request.sampler,
        sigmas=to_wire(request.sigmas),
        noise=to_wire(request.noise),
        latent=to_wire(request.latent),
        seed=request.seed,
        positive=[Branch(id="digit", conditioning=client.intern(pack_tree(case.conditioning)))],
        preview=True,
        reply=client.reply_slot(request.noise.nbytes),
    )
    reply = client.request(run, on_event=_look)
    if not isinstance(reply, Result):
        raise InternalError(f"A run ended in {reply.type}.")
    return from_wire(reply.latent)


def _per_step(client: Client, case: Case) -> Tensor:
    def forward(x: Tensor, sigma: Tensor, conditioning: Mapping[str, Any], _: Call) -> Tensor:
        request = Predict(
            run="bench",
            model=_model(),
            x=to_wire(x),
            timestep=to_wire(FLOW.timestep(sigma)),
            conditioning=client.intern(pack_tree(conditioning)),
            reply=client.reply_slot(x.nbytes),
        )
        reply = client.request(request)
        if not isinstance(reply, Prediction):
            raise InternalError(f"A prediction ended in {reply.type}.")
        return FLOW.denoised(x, from_wire(reply.v).float(), sigma)

    latent = _loop(forward, case, torch.device("cpu"))
    client.request(CloseRun(run="bench"))
    return latent


@cache
def _model() -> ModelRef:
    header = read_header(MODEL)
    return ModelRef(name=MODEL_NAME, size=header.size, digest=header.digest)


def _look(_: Message) -> None:
    """A caller who watches every step."""


@contextmanager
def _client(device: torch.device) -> Iterator[Client]:
    spec = LaunchSpec(device=device.type, dtype="float32", adopt=False, options=("--threads=1",))
    engine = adopt_or_start(spec)
    try:
        client = Client.connect(engine.address, client="bench", timeout=120.0, alive=engine.alive)
        yield client
        client.close()
    finally:
        engine.stop()


def _measure(loops: Mapping[str, Loop], rounds: int) -> dict[str, list[float]]:
    """Seconds per step of each round; the first round only warms up and checks that all agree."""
    latents = [loop() for loop in loops.values()]
    if not all(torch.allclose(latent, latents[0], atol=1e-4) for latent in latents):
        raise InternalError("The paths do not compute the same latent; their times mean nothing.")
    taken: dict[str, list[float]] = {name: [] for name in loops}
    for _ in range(rounds):
        for name, loop in loops.items():
            taken[name].append(_seconds(loop))
    return taken


def _report(case: str, taken: Mapping[str, list[float]]) -> Iterator[Row]:
    for name, seconds in taken.items():
        yield Row("overhead", case, f"{name} step", median(seconds) * 1e3, "ms", None, True)
    for name, target in (("whole_loop", WHOLE_LOOP_TARGET), ("per_step", PER_STEP_TARGET)):
        ratio = median(mine / bare for mine, bare in zip(taken[name], taken["bare"], strict=True))
        yield Row("overhead", case, f"{name} / bare", ratio, "x", target, ratio <= target)
