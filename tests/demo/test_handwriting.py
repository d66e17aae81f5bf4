from __future__ import annotations

import torch

from outboard.engine.demo.handwriting import augment, real_digits, typical


def test_held_out_digits_are_not_among_the_others() -> None:
    held_out, others = real_digits(held_out=True), real_digits(held_out=False)
    assert len(held_out.digits) + len(others.digits) == 1797
    assert torch.cdist(held_out.pictures.flatten(1), others.pictures.flatten(1)).min() > 0


def test_typical_digits_are_half_of_each_and_nearer_to_their_mean() -> None:
    data = real_digits(held_out=True)
    half = typical(data, 0.5)
    for digit in range(10):
        every, near = (part.pictures[part.digits == digit] for part in (data, half))
        assert abs(len(near) - len(every) / 2) <= 1
        center = every.mean(0)
        assert (near - center).square().mean() < (every - center).square().mean()


def test_augmentation_moves_ink_but_keeps_its_amount() -> None:
    pictures = real_digits(held_out=True).pictures[:50]
    moved = augment(pictures, torch.Generator().manual_seed(0))
    assert moved.min() >= 0
    assert moved.max() <= 1
    assert (moved - pictures).abs().mean((1, 2)).min() > 0.01
    torch.testing.assert_close(moved.mean((1, 2)), pictures.mean((1, 2)), rtol=0.25, atol=0)


def test_no_augmentation_changes_next_to_nothing() -> None:
    pictures = real_digits(held_out=True).pictures[:5]
    same = augment(pictures, torch.Generator().manual_seed(0), strength=0.0)
    torch.testing.assert_close(same, pictures, rtol=0, atol=1e-4)
