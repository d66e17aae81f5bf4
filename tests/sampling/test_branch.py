from __future__ import annotations

import pytest
import torch

from outboard.engine.sampling.branch import Area, Branch, fits_rows

X = torch.zeros(2, 3, 16, 24)


def test_a_branch_without_place_weighs_one_number() -> None:
    assert Branch("a", {}, strength=0.5).weight(X) == 0.5


def test_an_area_is_feathered_towards_its_inner_edges_only() -> None:
    weight = Branch("a", {}, strength=2.0, area=Area((16, 12), (0, 12))).weight(X)
    assert isinstance(weight, torch.Tensor)
    assert weight.shape == (1, 1, 16, 12)
    row = weight[0, 0, 5]
    assert torch.allclose(row[:4], 2 * torch.tensor([1 / 3, 2 / 3, 1.0, 1.0]))
    assert torch.equal(row[3:], torch.full((9,), 2.0))
    assert torch.equal(weight[0, 0, :, 0], weight[0, 0, :1, 0].expand(16))


def test_an_area_in_the_middle_is_feathered_on_all_sides() -> None:
    weight = Branch("a", {}, area=Area((4, 8), (4, 8))).weight(X)
    assert isinstance(weight, torch.Tensor)
    assert torch.allclose(weight[0, 0, 1], torch.tensor([0.5, 1, 1, 1, 1, 1, 1, 0.5]))
    assert torch.equal(weight[0, 0, :, 3], torch.ones(4))


def test_feathers_are_at_most_eight_wide() -> None:
    weight = Branch("a", {}, area=Area((1, 48), (0, 1))).weight(torch.zeros(1, 1, 1, 50))
    assert isinstance(weight, torch.Tensor)
    assert torch.allclose(weight.flatten()[:9], torch.tensor([*[n / 8 for n in range(1, 9)], 1.0]))


def test_a_mask_is_cut_to_the_area_and_not_feathered() -> None:
    mask = torch.arange(16.0 * 24).reshape(1, 1, 16, 24)
    weight = Branch("a", {}, strength=0.5, area=Area((2, 3), (1, 4)), mask=mask).weight(X)
    assert isinstance(weight, torch.Tensor)
    assert torch.equal(weight, mask[:, :, 1:3, 4:7] * 0.5)


@pytest.mark.parametrize(
    ("sigma", "active"), [(0.9, False), (0.8, True), (0.5, True), (0.3, True), (0.29, False)]
)
def test_a_range_includes_both_its_ends(sigma: float, active: bool) -> None:
    assert Branch("a", {}, start=0.8, end=0.3).active(torch.tensor(sigma)) == active


def test_a_mask_is_taken_in_turn_by_the_rows() -> None:
    mask = torch.arange(2.0).reshape(2, 1, 1, 1)
    assert fits_rows(mask, 4).flatten().tolist() == [0, 1, 0, 1]
    assert fits_rows(mask[:1], 4).shape == (1, 1, 1, 1)
    assert fits_rows(mask, 1).flatten().tolist() == [0]
