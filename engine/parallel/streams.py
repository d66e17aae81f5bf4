"""Which tokens a rank has: each stream (text, image) cut into one piece per rank, in order."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ...protocol.errors import UnsupportedRequestError
from .collectives import shares


class Streams:
    """The streams of one call: their lengths, and which of them the running attention mixes.

    Shards are numbered ring first: shard = ring place * ulysses + ulysses place. `least` is the fewest tokens
    that each shard of a stream must have, where a network cannot do with none.
    """

    def __init__(self, ring: int, ulysses: int, ring_place: int, ulysses_place: int, least: int = 0) -> None:
        self.ring, self.ulysses = ring, ulysses
        self.ring_place, self.ulysses_place = ring_place, ulysses_place
        self.least = least
        self.lengths: dict[str, int] = {}
        self.mixed: tuple[str, ...] = ()
        self.mask: torch.Tensor | None = None

    @property
    def shards(self) -> int:
        return self.ring * self.ulysses

    @property
    def here(self) -> int:
        """The number of this rank's shard."""
        return self.ring_place * self.ulysses + self.ulysses_place

    def forget(self) -> None:
        """Be ready for a call with other lengths."""
        self.lengths.clear()
        self.mixed, self.mask = (), None

    def sizes(self, stream: str) -> list[int]:
        """Tokens of `stream` in each shard."""
        return shares(self.lengths[stream], self.shards)

    def cut(self, tensor: torch.Tensor, stream: str, dim: int) -> torch.Tensor:
        """This rank's piece of a whole `tensor` along `dim`, a view; all of a stream is of one length."""
        length = tensor.shape[dim]
        assert self.lengths.setdefault(stream, length) == length, (stream, length, self.lengths)
        if length < self.least * self.shards:
            raise UnsupportedRequestError(
                f"{length} tokens of the {stream} cannot be shared by ring {self.ring} x ulysses "
                f"{self.ulysses}: this network needs {self.least} in each shard.",
                hint=f"Use ring x ulysses of {max(1, length // self.least)} or fewer, or a longer prompt.",
            )
        sizes = self.sizes(stream)
        return tensor.narrow(dim, sum(sizes[: self.here]), sizes[self.here])

    def pieces(self, ring_place: int) -> list[list[int]]:
        """Tokens of each mixed stream in each of the Ulysses shards of one place in the ring."""
        first = ring_place * self.ulysses
        return [self.sizes(stream)[first : first + self.ulysses] for stream in self.mixed]

    def tokens(self, ring_place: int) -> int:
        """Tokens of all mixed streams at one place in the ring."""
        return sum(map(sum, self.pieces(ring_place)))

    def of_place(self, whole: torch.Tensor, dim: int, ring_place: int) -> torch.Tensor:
        """What of `whole`, over all mixed tokens, belongs to one place in the ring; broadcast sizes stay."""
        if self.ring == 1 or whole.shape[dim] == 1:
            return whole
        parts, before = [], 0
        for stream in self.mixed:
            sizes = self.sizes(stream)
            first = ring_place * self.ulysses
            start = before + sum(sizes[:first])
            parts.append(whole.narrow(dim, start, sum(sizes[first : first + self.ulysses])))
            before += sum(sizes)
        return torch.cat(parts, dim)


def by_stream(pieces: Sequence[torch.Tensor], lengths: Sequence[Sequence[int]], dim: int) -> torch.Tensor:
    """Pieces of the shards, each [a, b, ...], put together as [a a ..., b b ...].

    `lengths[stream][shard]`. So tokens stand as they would on one device, and masks need no change.
    """
    parts = [
        piece.split_with_sizes([sizes[number] for sizes in lengths], dim)
        for number, piece in enumerate(pieces)
    ]
    return torch.cat([part[stream] for stream in range(len(lengths)) for part in parts], dim)


def by_shard(whole: torch.Tensor, lengths: Sequence[Sequence[int]], dim: int) -> list[torch.Tensor]:
    """The inverse of `by_stream`."""
    parts = whole.split_with_sizes([size for sizes in lengths for size in sizes], dim)
    shards = len(lengths[0])
    return [
        torch.cat([parts[stream * shards + number] for stream in range(len(lengths))], dim)
        for number in range(shards)
    ]
