"""What guidance knows when it combines two predictions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from torch import Tensor

from ....protocol.messages.base import Record
from ..branch import Side
from ..flow import Flow


@dataclass(frozen=True, eq=False)
class Moment:
    """One step: `positive` and `negative` are x0 [B, C, ...] predicted at `x`, `sigma` a scalar on the CPU.

    whole: whether both were asked for; the negative is 0 where it was not.
    predict: the x0 of further conditionings at this step.
    """

    x: Tensor
    sigma: Tensor
    scale: float
    positive: Tensor
    negative: Tensor
    flow: Flow
    predict: Callable[[Side], Tensor]
    whole: bool = True

    @property
    def guided(self) -> Tensor:
        """Plain guidance: negative + (positive - negative) * scale (Ho & Salimans 2022, arXiv:2207.12598)."""
        return self.negative + (self.positive - self.negative) * self.scale


class Before(Protocol):
    """Changes the two predictions."""

    def __call__(self, moment: Moment, /) -> Moment: ...


class Combine(Protocol):
    """Combines them, in place of plain guidance, and returns x0."""

    def __call__(self, moment: Moment, /) -> Tensor: ...


class After(Protocol):
    """Changes the combined x0."""

    def __call__(self, moment: Moment, x0: Tensor, /) -> Tensor: ...


def chosen(functions: Mapping[type[Record], Callable[..., Any]], change: Record) -> Callable[..., Any] | None:
    """Return the function for `change`, given it as its first argument; None when there is none here."""
    function = functions.get(type(change))
    return None if function is None else partial(function, change)


def row_dims(x: Tensor) -> tuple[int, ...]:
    """Return all dimensions of one row of `x`."""
    return tuple(range(1, x.ndim))
