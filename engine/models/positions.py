"""Rotary position ids of image tokens, with ComfyUI's rope options, and where reference images are put."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any

import torch

from ...protocol.errors import InvalidRequestError, UnsupportedRequestError

ROPE_KEYS = frozenset({"scale_x", "scale_y", "scale_t", "shift_x", "shift_y", "shift_t"})


@dataclass(frozen=True)
class Rope:
    """Stretch and shift of the image's positions, in tokens; scale_t is read by video models alone."""

    scale_x: float = 1.0
    scale_y: float = 1.0
    scale_t: float = 1.0
    shift_x: float = 0.0
    shift_y: float = 0.0
    shift_t: float = 0.0

    @classmethod
    def parse(cls, options: Mapping[str, Any] | None, family: str) -> Rope:
        """Read a request's `rope_options`; raises on an unknown key or a value that is no number."""
        options = options or {}
        for key, value in options.items():
            if key not in ROPE_KEYS:
                raise UnsupportedRequestError(f"{family} does not know the rope option {key!r}.")
            if not isinstance(value, Real):
                raise InvalidRequestError(f"The rope option {key!r} is {value!r}, not a number.")
        return cls(**{key: float(value) for key, value in options.items()})

    @property
    def is_identity(self) -> bool:
        return self == Rope()


@dataclass(frozen=True)
class Place:
    """Where an image stands: frame index, and offset in tokens."""

    index: float = 0.0
    row: int = 0
    column: int = 0


def image_ids(rows: int, columns: int, place: Place, rope: Rope, device: torch.device) -> torch.Tensor:
    """Ids (rows*columns, 3) = (index, row, column), fp32."""
    ids = torch.empty((rows, columns, 3), dtype=torch.float32, device=device)
    ids[..., 0] = place.index + rope.shift_t
    ids[..., 1] = (_axis(rows, device) * rope.scale_y + (place.row + rope.shift_y))[:, None]
    ids[..., 2] = _axis(columns, device) * rope.scale_x + (place.column + rope.shift_x)
    return ids.reshape(-1, 3)


def _axis(count: int, device: torch.device) -> torch.Tensor:
    return torch.arange(count, dtype=torch.float32, device=device)


def place_by_index(count: int, step: float = 1.0) -> Iterator[Place]:
    """Every reference in a frame of its own, at the origin."""
    return (Place(index=step * (number + 1)) for number in range(count))


def place_by_offset(sizes: Sequence[tuple[int, int]], patch: int) -> Iterator[Place]:
    """All references in frame 1, each below or beside the ones before it, whichever keeps the whole squarer.

    `sizes` are latent (height, width).
    """
    height = width = 0
    for high, wide in sizes:
        beside = height + high > width + wide
        top, left = (0, width) if beside else (height, 0)
        height, width = max(height, top + high), max(width, left + wide)
        yield Place(1.0, _tokens(top, patch), _tokens(left, patch))


def place_by_diagonal(
    target: tuple[int, int], sizes: Sequence[tuple[int, int]], patch: int
) -> Iterator[Place]:
    """All references in the target's frame, down its diagonal (UNO: https://arxiv.org/abs/2504.02160).

    `target` is in tokens, `sizes` are latent (height, width).
    """
    top, left = target[0] * patch, target[1] * patch
    for high, wide in sizes:
        yield Place(0.0, _tokens(top, patch), _tokens(left, patch))
        top, left = top + high, left + wide


def _tokens(pixels: int, patch: int) -> int:
    return (pixels + patch // 2) // patch
