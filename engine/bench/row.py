"""One line of `outboard bench`: a measured number, and what it should be."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    """`case` and `metric` name the number; `ok` says whether it meets `target` (None: it is only shown).

    `value` is NaN for a number that could not be measured, which misses its target.
    """

    bench: str
    case: str
    metric: str
    value: float
    unit: str
    target: float | None
    ok: bool
