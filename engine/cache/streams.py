"""The tokens between two blocks, and the arithmetic of what blocks add to them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from . import rows
from .forecast import Snapshot, predict


@dataclass(frozen=True, eq=False)
class Streams:
    """Image tokens (B,N,D) and text tokens (B,L,D), or None when there are none apart."""

    image: Tensor
    text: Tensor | None

    def joined(self) -> Streams:
        """Both in one, text first, as single-stream blocks take them."""
        if self.text is None:
            return self
        return Streams(torch.cat([self.text, self.image], dim=1), None)

    def change(self, part: Callable[[Tensor], Tensor]) -> Streams:
        return Streams(part(self.image), None if self.text is None else part(self.text))

    def take(self, picked: Sequence[int], batch: int, dim: int) -> Streams:
        return self.change(lambda tokens: rows.take(tokens, picked, batch, dim))

    def put(self, other: Streams, picked: Sequence[int], dim: int) -> Streams:
        """These with the rows `picked` from `other`, which has only them."""
        text = self.text
        if text is not None and other.text is not None:
            text = rows.put(text, other.text, picked, dim)
        return Streams(rows.put(self.image, other.image, picked, dim), text)

    def row(self, number: int, batch: int, dim: int) -> Streams:
        """One row as a view; the whole when it is the only one."""
        return self if batch == 1 else self.change(lambda tokens: rows.row(tokens, number, dim))


def added(before: Streams, after: Streams, position: float) -> Snapshot:
    """What was added on the way; text that is no longer there counts as None."""
    gone = before.text is None or after.text is None
    text = None if gone else _difference(after.text, before.text)
    return Snapshot(position, after.image - before.image, text)


def extrapolated(before: Streams, history: Sequence[Snapshot], at: float, *, text_too: bool) -> Streams:
    """`before` and what the blocks would have added at position `at`, by what they added earlier."""
    positions = [snapshot.position for snapshot in history]
    image = before.image + predict([snapshot.image for snapshot in history], positions, at)
    texts = [snapshot.text for snapshot in history if snapshot.text is not None]
    if before.text is None or len(texts) < len(history):
        return Streams(image, None)
    start = 0 if text_too else len(texts) - 1
    return Streams(image, before.text + predict(texts[start:], positions[start:], at))


def stacked(parts: Sequence[Streams], dim: int) -> Streams:
    """Rows to a batch."""
    if len(parts) == 1:
        return parts[0]
    texts = [part.text for part in parts if part.text is not None]
    return Streams(torch.cat([part.image for part in parts], dim), torch.cat(texts, dim) if texts else None)


def _difference(after: Tensor | None, before: Tensor | None) -> Tensor:
    assert after is not None
    assert before is not None
    return after - before
