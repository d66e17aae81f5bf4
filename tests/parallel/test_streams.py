"""Tokens cut into shards of unequal size, and put together as they were."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from outboard.engine.parallel.collectives import shares
from outboard.engine.parallel.streams import Streams, by_shard, by_stream
from outboard.protocol.errors import UnsupportedRequestError

SIZES = st.integers(0, 9)


def test_shares_differ_by_one_at_most_and_may_be_empty() -> None:
    assert shares(7, 3) == [3, 2, 2]
    assert shares(1, 3) == [1, 0, 0]


@given(text=SIZES, image=st.integers(2, 9), ring=st.integers(1, 3), ulysses=st.integers(1, 3))
def test_shards_of_one_ring_place_come_back_in_the_order_of_one_device(
    text: int, image: int, ring: int, ulysses: int
) -> None:
    whole = {"text": torch.arange(text), "image": 100 + torch.arange(image)}
    for place in range(ring):
        pieces = []
        for number in range(ulysses):
            streams = Streams(ring, ulysses, place, number)
            pieces.append(torch.cat([streams.cut(tokens, name, 0) for name, tokens in whole.items()]))
        streams.mixed = ("text", "image")
        lengths = streams.pieces(place)
        together = by_stream(pieces, lengths, 0)
        assert torch.equal(together, streams.of_place(torch.cat(list(whole.values())), 0, place))
        assert len(together) == streams.tokens(place)
        for piece, again in zip(pieces, by_shard(together, lengths, 0), strict=True):
            assert torch.equal(piece, again)


def test_a_broadcast_side_of_a_mask_is_left_alone() -> None:
    streams = Streams(2, 1, 1, 0)
    streams.cut(torch.zeros(5), "text", 0)
    streams.mixed = ("text",)
    mask = torch.arange(5)[None]
    assert streams.of_place(mask, 0, 1) is mask
    assert streams.of_place(mask, 1, 1).tolist() == [[3, 4]]


def test_too_few_tokens_for_a_network_that_needs_some_are_refused() -> None:
    streams = Streams(1, 4, 0, 0, least=1)
    with pytest.raises(UnsupportedRequestError, match=r"3 tokens of the text .* ulysses 4") as caught:
        streams.cut(torch.zeros(3), "text", 0)
    assert "3 or fewer" in caught.value.hint


def test_lengths_are_forgotten_between_calls() -> None:
    streams = Streams(1, 2, 0, 0)
    streams.cut(torch.zeros(4), "image", 0)
    streams.forget()
    assert streams.cut(torch.zeros(6), "image", 0).shape == (3,)
