"""How large a message may be before it is refused unread."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class WireLimits:
    """Sizes in bytes, counts as such. `depth` counts nested containers, the body being the first."""

    header: int = 1 << 20
    depth: int = 16
    text: int = 1 << 18
    items: int = 1 << 14
    tensors: int = 1 << 13
    dimensions: int = 8
    tensor: int = 4 << 30
    message: int = 8 << 30


DEFAULT = WireLimits()


def clip(value: object, length: int = 120) -> str:
    """`value` as text short enough for an error message, whatever a peer sent."""
    text = str(value)[: length + 1]
    return text if len(text) <= length else text[: length - 3] + "..."
