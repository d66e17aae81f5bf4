"""Packing latents into tokens."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from outboard.engine.models.patches import completed, pack, pack_frames, unpack, unpack_frames


@given(st.integers(1, 9), st.integers(1, 9), st.sampled_from([1, 2]))
def test_unpack_undoes_pack_at_every_size(height: int, width: int, patch: int) -> None:
    latent = torch.arange(2 * 3 * height * width, dtype=torch.float32).reshape(2, 3, height, width)
    assert torch.equal(unpack(pack(latent, patch), patch, height, width), latent)


def test_a_token_holds_a_patch_channel_first() -> None:
    latent = torch.arange(32.0).reshape(1, 2, 4, 4)
    assert pack(latent, 2)[0, 1].tolist() == [2, 3, 6, 7, 18, 19, 22, 23]


@pytest.mark.parametrize("shape", [(1, 1, 3, 4), (1, 1, 4, 3)])
def test_a_ragged_edge_wraps_around(shape: tuple[int, ...]) -> None:
    latent = torch.arange(12.0).reshape(shape)
    last = pack(latent, 2)[0, -1].reshape(2, 2)
    assert last[1, 1] in (latent[0, 0, 0, -1], latent[0, 0, -1, 0])


def test_frames_are_packed_one_after_the_other() -> None:
    video = torch.arange(2 * 3 * 2 * 3 * 5, dtype=torch.float32).reshape(2, 3, 2, 3, 5)
    tokens = pack_frames(video, 2)
    assert torch.equal(tokens[:, 6:], pack(video[:, :, 1], 2))
    assert torch.equal(unpack_frames(tokens, 2, 2, 3, 5), video)


def test_a_video_is_completed_frame_by_frame() -> None:
    video = torch.arange(15.0).reshape(1, 1, 1, 3, 5).repeat(1, 2, 4, 1, 1)
    whole = completed(video, 2)
    assert whole.shape == (1, 2, 4, 4, 6)
    assert torch.equal(whole[..., :3, :5], video)
    assert torch.equal(whole[..., 3, :], whole[..., 0, :])
    assert torch.equal(whole[..., 5], whole[..., 0])
    assert completed(whole, 2) is whole
