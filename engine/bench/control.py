"""What ControlNet residuals cost a step: a set of them into the engine, against one copy of as many bytes.

Each way goes through the real client and engine, takes turns with the same step without residuals, and costs
what it takes longer. The network has nothing to add: its lists begin with a None for each of its blocks.
What is unchanged is compared while the engine computes, which costs nothing where a core is free for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import count
from statistics import median
from time import perf_counter

import torch
from torch import Tensor

from ...protocol.client import Client
from ...protocol.errors import InternalError, LimitError
from ...protocol.messages.client import CloseRun, Predict
from ...protocol.messages.common import ModelRef
from ...protocol.messages.engine import Prediction
from ...protocol.shelf import Shelf
from ...protocol.torch import TorchSource, pack_tree, to_wire
from ...protocol.values import WireTensor
from ..demo.assets import LATENT_SHAPE, MODEL, MODEL_NAME
from ..demo.digits import prompt
from ..models.header import read_header
from ..sampling.noise import initial_noise
from .overhead import open_client
from .row import Row

#: A ControlNet of 16 blocks for FLUX.1 at 1024x1024 in bf16, as many bytes in fp32.
COUNT, SHAPE = 16, (1, 4096, 1536)
#: More than the network has.
BLOCKS = 64
#: A step must be this many copies long, so that there is time to look at residuals while it is computed.
COPIES = 2
SIDES = (8, *range(24, 256, 8))
ROUNDS = 25
FRESH_TARGET, UNCHANGED_TARGET = 1.5, 0.25
RUN = "control"

Residuals = list[Tensor]


class Steps:
    """Per-step calls of one run, each with a set of residuals."""

    def __init__(self, client: Client, shelf: Shelf) -> None:
        header = read_header(MODEL)
        self._model = ModelRef(name=MODEL_NAME, size=header.size, digest=header.digest)
        self._text = pack_tree(prompt(3))
        self._client = client
        self._shelf = shelf
        self.noise = initial_noise((1, *LATENT_SHAPE), 0)

    def __call__(self, residuals: Residuals) -> None:
        """One call, made again when a residual had changed unseen."""
        self._shelf.begin()
        self._once(residuals)
        while not self._shelf.settle():
            self._once(residuals)

    def _once(self, residuals: Residuals) -> None:
        placed = [self._placed(tensor) for tensor in residuals]
        control = {"control": {"input": [None] * BLOCKS + placed}} if placed else {}
        request = Predict(
            run=RUN,
            model=self._model,
            x=to_wire(self.noise),
            timestep=to_wire(torch.tensor([0.5])),
            conditioning={**self._text, **control},
            reply=self._client.reply_slot(self.noise.nbytes),
        )
        reply = self._client.request(request, poll=self._look)
        if not isinstance(reply, Prediction):
            raise InternalError(f"A prediction ended in {reply.type}.")

    def _look(self) -> None:
        self._shelf.settle()

    def _placed(self, tensor: Tensor) -> WireTensor:
        placed = self._shelf.place(TorchSource(tensor))
        if placed is None:
            raise LimitError(
                f"There is no shared memory for {COUNT} residuals: {self._shelf.shortage}.",
                hint="Make more room there (in Docker: --shm-size=8g).",
            )
        return placed


def rows(rounds: int = ROUNDS) -> Iterator[Row]:
    """Milliseconds of each way, and the median costs over one copy with their targets."""
    with open_client(torch.device("cpu")) as client:
        shelf = client.shelf()
        if shelf is None:
            raise InternalError("The engine was started on this host, and shares no memory with it.")
        steps = Steps(client, shelf)
        residuals = [torch.full(SHAPE, float(number)) for number in range(COUNT)]
        ways = _ways(steps, residuals)
        _size(steps, _seconds(ways["memcpy"]))
        taken = _measure(ways, rounds)
        client.request(CloseRun(run=RUN))
        shelf.close(reusable=True)
    yield from _report(f"{sum(tensor.nbytes for tensor in residuals) / 1e9:.2g} GB", taken)


def _ways(steps: Steps, residuals: Residuals) -> Mapping[str, Callable[[], object]]:
    target = memoryview(bytearray(sum(tensor.nbytes for tensor in residuals)))
    changing = [tensor.clone() for tensor in residuals]
    numbers = count(COUNT)

    def memcpy() -> None:
        begin = 0
        for tensor in residuals:
            target[begin : begin + tensor.nbytes] = to_wire(tensor).data
            begin += tensor.nbytes

    def rewritten() -> None:
        for tensor in changing:
            # One element tells as much as all, and takes no time of its own.
            tensor[0, 0, 0] = next(numbers)
        steps(changing)

    return {
        "memcpy": memcpy,
        "without": lambda: steps([]),
        # Objects of their own, as a ControlNet makes at every step.
        "fresh": lambda: steps([tensor.detach() for tensor in residuals]),
        "rewritten": rewritten,
        "unchanged": lambda: steps(residuals),
    }


def _size(steps: Steps, copy: float) -> None:
    """Give `steps` the smallest latent whose step takes long enough."""
    for side in SIDES:
        steps.noise = initial_noise((1, LATENT_SHAPE[0], side, side), 0)
        steps([])
        if _seconds(lambda: steps([])) >= COPIES * copy:
            break


def _seconds(way: Callable[[], object]) -> float:
    began = perf_counter()
    way()
    return perf_counter() - began


def _measure(ways: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """Seconds of each way in each round; two rounds before only warm up."""
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds + 2):
        for name, way in ways.items():
            taken[name].append(_seconds(way))
    return {name: seconds[2:] for name, seconds in taken.items()}


def _report(case: str, taken: Mapping[str, list[float]]) -> Iterator[Row]:
    for name, seconds in taken.items():
        yield Row("control", case, name, median(seconds) * 1e3, "ms", None, True)
    copy = median(taken["memcpy"])
    for name, target in (
        ("fresh", FRESH_TARGET),
        ("rewritten", None),
        ("unchanged", UNCHANGED_TARGET),
    ):
        pairs = zip(taken[name], taken["without"], strict=True)
        cost = median(mine - without for mine, without in pairs) / copy
        yield Row("control", case, f"{name} / memcpy", cost, "x", target, target is None or cost <= target)
