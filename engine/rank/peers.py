"""This rank among those of its group: what each must know of the others before they compute together.

A collective that one rank never enters holds up the others for good. So all that may fail on one rank alone
is done first, and `agreed` then tells every rank whether to go on.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Protocol

import torch
import torch.distributed as dist

from ...protocol.errors import CancelledError, OutboardError
from ...protocol.failure import from_message, to_message
from ...protocol.messages.engine import Error
from ..link import RankSpec
from .failure import as_outboard

#: No collective ends by itself: the supervisor ends ranks that wait for one that is gone.
NEVER = timedelta(days=365)


class Peers(Protocol):
    """The ranks of a group, this one included. Whatever is asked, all of them ask it together."""

    rank: int
    world: int

    def any(self, flag: bool) -> bool:
        """Whether `flag` is set on one rank at least."""

    def least(self, number: int) -> int:
        """The smallest `number` of all ranks."""

    def each(self, number: int) -> list[int]:
        """The number of every rank, in their order."""

    def texts(self, text: str) -> list[str]:
        """The text of every rank, in their order."""


class Alone:
    """A rank that has no others to ask."""

    rank, world = 0, 1

    def any(self, flag: bool) -> bool:
        return flag

    def least(self, number: int) -> int:
        return number

    def each(self, number: int) -> list[int]:
        return [number]

    def texts(self, text: str) -> list[str]:
        return [text]


class Together:
    """The ranks of torch's process group, which exchange small things in host memory."""

    def __init__(self) -> None:
        self.rank, self.world = dist.get_rank(), dist.get_world_size()

    def any(self, flag: bool) -> bool:
        return bool(self._reduced(int(flag), dist.ReduceOp.MAX))

    def least(self, number: int) -> int:
        return self._reduced(number, dist.ReduceOp.MIN)

    def each(self, number: int) -> list[int]:
        mine = torch.tensor([number])
        found = [torch.empty_like(mine) for _ in range(self.world)]
        dist.all_gather(found, mine)
        return [int(value) for value in found]

    def texts(self, text: str) -> list[str]:
        raw = text.encode()
        sizes = self.each(len(raw))
        mine = torch.zeros(max(sizes), dtype=torch.uint8)
        mine[: len(raw)] = torch.frombuffer(bytearray(raw), dtype=torch.uint8) if raw else mine[:0]
        found = [torch.empty_like(mine) for _ in range(self.world)]
        if max(sizes):
            dist.all_gather(found, mine)
        return [bytes(part[:size].tolist()).decode() for part, size in zip(found, sizes, strict=True)]

    def _reduced(self, number: int, how: dist.ReduceOp.RedOpType) -> int:
        value = torch.tensor([number])
        dist.all_reduce(value, how)
        return int(value)


def join(spec: RankSpec, device: torch.device) -> Peers:
    """Meet the other ranks at the file that the supervisor named; returns once all are there."""
    if spec.world_size == 1:
        return Alone()
    if sys.platform == "linux":
        # Ranks of one host meet on its own network, whatever its name resolves to.
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group(
        "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo",
        init_method=Path(spec.meeting).as_uri(),
        rank=spec.rank,
        world_size=spec.world_size,
        timeout=NEVER,
        device_id=device if device.type == "cuda" else None,
    )
    return Together()


@contextmanager
def agreed(peers: Peers, doing: str) -> Iterator[None]:
    """Within, a rank may fail; all then raise the error of the first that did. `doing` names the command."""
    error: OutboardError | None = None
    try:
        yield
    except Exception as failed:  # noqa: BLE001 - whatever it is, the other ranks wait to hear of it
        error = as_outboard(failed, doing)
    if peers.any(error is not None):
        raise _first(peers.texts("" if error is None else to_message(error).model_dump_json()))


def _first(texts: list[str]) -> OutboardError:
    rank = next(number for number, text in enumerate(texts) if text)
    error = from_message(Error(**json.loads(texts[rank])))
    if rank and not isinstance(error, CancelledError):
        error.message = f"Rank {rank}: {error.message}"
        error.details |= {"rank": str(rank)}
    return error
