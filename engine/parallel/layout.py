"""How many ranks go to each way of sharing a model's work."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass

from ...protocol.errors import InvalidRequestError

AXES = ("dp", "cfg", "ring", "ulysses", "tp")


@dataclass(frozen=True)
class Layout:
    """Sizes of the axes, outermost first.

    dp       replicas, each with requests of its own
    cfg      rows of one call, such as cond and uncond, on different ranks
    ring     tokens shared out; keys and values go round
    ulysses  tokens shared out; within attention, heads are
    tp       weights shared out
    """

    dp: int = 1
    cfg: int = 1
    ring: int = 1
    ulysses: int = 1
    tp: int = 1

    def __post_init__(self) -> None:
        wrong = {name: size for name, size in asdict(self).items() if size < 1}
        if wrong:
            raise InvalidRequestError(f"Sizes of a layout are at least 1, not {wrong}.")

    def __str__(self) -> str:
        named = [f"{name} {size}" for name, size in asdict(self).items() if size > 1]
        return " x ".join(named) or "one rank"

    def arguments(self) -> list[str]:
        """The options of `outboard serve` that say the same."""
        return [f"--{axis}={size}" for axis, size in asdict(self).items() if size > 1]

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(getattr(self, name) for name in AXES)

    @property
    def world(self) -> int:
        return math.prod(self.sizes)

    @property
    def shards(self) -> int:
        """Pieces that the tokens are cut into."""
        return self.ring * self.ulysses

    def check_world(self, ranks: int) -> None:
        """Raise InvalidRequestError unless the axes multiply to `ranks`."""
        if self.world != ranks:
            product = " x ".join(f"{name} {getattr(self, name)}" for name in AXES)
            raise InvalidRequestError(
                f"The layout {product} = {self.world} does not go with {ranks} ranks.",
                hint=f"Choose sizes whose product is {ranks}, or `auto`.",
            )


def automatic(ranks: int, *, cfg: float, heads: int, nbytes: int = 0, room: int | None = None) -> Layout:
    """The layout to prefer: cond and uncond apart if `cfg` > 1, then Ulysses, then what that leaves.

    `nbytes` of weights go into `room` bytes of each device; None means they fit. Weights are cut only when
    they do not fit, and keys go round a ring only as far as the ranks do not divide the heads.
    Raises InvalidRequestError when no cut of the weights would fit.
    """
    rows = 2 if cfg > 1 and ranks % 2 == 0 else 1
    rest = ranks // rows
    tp = _weights_cut(rest, heads, nbytes, room)
    if tp is None and rows > 1:
        rows, rest = 1, ranks
        tp = _weights_cut(rest, heads, nbytes, room)
    if tp is None:
        raise InvalidRequestError(
            f"{nbytes} bytes of weights do not fit {room} bytes per device, however {ranks} ranks cut "
            f"{heads} heads.",
            hint="Use a low-bit file of the model, or offload its weights.",
        )
    rest //= tp
    ulysses = math.gcd(heads // tp, rest)
    return Layout(cfg=rows, ring=rest // ulysses, ulysses=ulysses, tp=tp)


def _weights_cut(ranks: int, heads: int, nbytes: int, room: int | None) -> int | None:
    if room is None:
        return 1
    fitting = (
        size
        for size in range(1, ranks + 1)
        if ranks % size == 0 and heads % size == 0 and nbytes <= room * size
    )
    return next(fitting, None)


def dividing(heads: int, ranks: int) -> list[int]:
    """Sizes from 2 to at least `ranks` that divide `heads`: what tensor parallel could use instead."""
    return [size for size in range(2, max(ranks, 8) + 1) if heads % size == 0]
