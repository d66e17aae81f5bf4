"""What one hop costs: a tensor to another process and a small answer back, by frames and by shared memory.

Every ratio is taken in one run, its cases alternating, so that a slow machine is slow for all of them.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter

import zmq

from ...protocol.arena import Arena, Scope
from ...protocol.codec import Envelope, decode, encode
from ...protocol.messages.client import Bye, PutBlob
from ...protocol.shm import session_prefix
from ...protocol.sockets import SocketChannel
from ...protocol.values import WireTensor
from .peer import ENGINE, SESSION
from .row import Row

SIZES = {"0.25 MB": 250_000, "1 MB": 1_000_000, "4 MB": 4_000_000, "20 MB": 20_000_000}
TRIPS = 5
WARM_UP = 2
_DIGEST = "0" * 32

Hop = Callable[[WireTensor], None]


class Frames:
    """The protocol without shared memory."""

    def __init__(self, channel: SocketChannel) -> None:
        self._channel = channel
        self._numbers = count(1)

    def __call__(self, tensor: WireTensor) -> None:
        """One round trip."""
        message = PutBlob(digest=_DIGEST, tensor=tensor)
        self._channel.send(encode(Envelope(message, f"r{next(self._numbers)}", SESSION)))
        self._answer()

    def _answer(self) -> None:
        frames = self._channel.recv(10.0)
        assert frames is not None, "the peer does not answer"
        decode(frames)


class Shared(Frames):
    """The protocol with the tensor in shared memory."""

    def __init__(self, channel: SocketChannel, arena: Arena) -> None:
        super().__init__(channel)
        self._arena = arena

    def __call__(self, tensor: WireTensor) -> None:
        """One round trip."""
        scope = Scope(self._arena)
        message = PutBlob(digest=_DIGEST, tensor=tensor)
        self._channel.send(encode(Envelope(message, f"r{next(self._numbers)}", SESSION), scope.place))
        self._answer()
        scope.close(reusable=True)


class Bare:
    """pyzmq alone, without copies: the floor of anything over sockets."""

    def __init__(self, socket: zmq.Socket[bytes]) -> None:
        self._socket = socket

    def __call__(self, tensor: WireTensor) -> None:
        """One round trip."""
        self._socket.send_multipart([b"tensor", tensor.data], copy=False)
        self._socket.recv_multipart(copy=False)


class Memcpy:
    """One copy within this process: the floor of anything over shared memory."""

    def __init__(self, nbytes: int) -> None:
        self._target = memoryview(bytearray(nbytes))

    def __call__(self, tensor: WireTensor) -> None:
        """One copy."""
        self._target[: tensor.nbytes] = tensor.data


def rows(repeats: int = 60) -> Iterator[Row]:
    """Measure every size; medians of `repeats` (fewer for the large ones)."""
    with _hops() as hops:
        for case, nbytes in SIZES.items():
            seconds = _measure(hops, nbytes, max(15, min(repeats, repeats * 4_000_000 // nbytes)))
            yield from _report(case, seconds)


def run() -> list[Row]:
    """All rows at once."""
    return list(rows())


@contextmanager
def _hops() -> Iterator[Mapping[str, Hop]]:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="hop-")))
        bare: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.DEALER)
        stack.callback(bare.close, 0)
        stack.enter_context(_peer("bare", f"ipc://{folder}/bare"))
        bare.connect(f"ipc://{folder}/bare")
        stack.callback(bare.send, b"bye")
        stack.enter_context(_peer("protocol", f"ipc://{folder}/protocol"))
        channel = SocketChannel(f"ipc://{folder}/protocol")
        stack.callback(channel.close)
        stack.callback(lambda: channel.send(encode(Envelope(Bye(), "bye", SESSION))))
        arena = Arena(session_prefix(ENGINE, SESSION))
        stack.callback(arena.close)
        yield {
            "memcpy": Memcpy(max(SIZES.values())),
            "bare": Bare(bare),
            "frames": Frames(channel),
            "shm": Shared(channel, arena),
        }


@contextmanager
def _peer(kind: str, endpoint: str) -> Iterator[None]:
    process = subprocess.Popen([sys.executable, "-m", f"{__package__}.peer", kind, endpoint])
    try:
        yield
        process.wait(10)
    finally:
        process.kill()
        process.wait()


def _measure(hops: Mapping[str, Hop], nbytes: int, repeats: int) -> dict[str, float]:
    """Median seconds of each hop, the hops taking turns of a few trips each; the first turns only warm up."""
    tensor = WireTensor("uint8", (nbytes,), memoryview(bytearray(b"\1" * nbytes)))
    taken: dict[str, list[float]] = {name: [] for name in hops}
    for _ in range(repeats + WARM_UP):
        for name, hop in hops.items():
            for _ in range(TRIPS):
                begin = perf_counter()
                hop(tensor)
                taken[name].append(perf_counter() - begin)
    return {name: median(values[WARM_UP * TRIPS :]) for name, values in taken.items()}


def _report(case: str, seconds: Mapping[str, float]) -> Iterator[Row]:
    for name, value in seconds.items():
        yield Row("hop", case, name, value * 1e3, "ms", None, True)
    for name in ("frames", "shm"):
        yield _ratio(case, f"{name} / memcpy", seconds[name] / seconds["memcpy"], None)
    yield _ratio(case, "frames / bare", seconds["frames"] / seconds["bare"], 1.5)
    yield _ratio(case, "shm / frames", seconds["shm"] / seconds["frames"], 1.0)


def _ratio(case: str, metric: str, value: float, target: float | None) -> Row:
    return Row("hop", case, metric, value, "x", target, target is None or value <= target)
