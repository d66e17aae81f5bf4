"""Rotary turns and waves."""

from __future__ import annotations

import torch

from outboard.engine.models.rotary import rotate, turns, waves

IDS = torch.tensor([[0.0, 0.0], [3.0, -2.0], [0.0, 100_000.0]])


def test_a_turn_has_modulus_one_and_the_first_angle_is_the_position() -> None:
    turned = turns(IDS, (4, 4), 100.0)
    assert turned.shape == (3, 4)
    assert torch.allclose(turned.abs(), torch.ones(3, 4))
    assert torch.allclose(turned[1].angle(), torch.tensor([3.0, 0.3, -2.0, -0.2]))


def test_far_positions_keep_their_angle() -> None:
    exact = torch.tensor(100_000.0, dtype=torch.float64) / 100.0**0.5
    assert abs(turns(IDS, (4, 4), 100.0)[2, 3].real - exact.cos()) < 1e-6


def test_waves_are_the_same_twice_in_a_row() -> None:
    cosines, sines = waves(IDS, (4, 4), 100.0)
    turned = turns(IDS, (4, 4), 100.0)
    assert torch.equal(cosines[:, ::2], turned.real)
    assert torch.equal(cosines[:, 1::2], turned.real)
    assert torch.equal(sines[:, 1::2], turned.imag)


def test_rotation_turns_pairs_of_channels_and_keeps_the_dtype() -> None:
    x = torch.randn(2, len(IDS), 3, 8, generator=torch.Generator().manual_seed(0))
    cosines, sines = waves(IDS, (4, 4), 100.0)
    crossed = torch.stack([-x[..., 1::2], x[..., 0::2]], dim=-1).flatten(3)
    expected = x * cosines[None, :, None] + crossed * sines[None, :, None]
    torch.testing.assert_close(rotate(x, turns(IDS, (4, 4), 100.0)), expected)
    assert rotate(x.bfloat16(), turns(IDS, (4, 4), 100.0)).dtype == torch.bfloat16
