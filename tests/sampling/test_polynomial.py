from __future__ import annotations

import pytest
import torch

from outboard.engine.sampling.polynomial import adams_weights, lagrange

NODES = [0.9, 0.7, 0.4]


@pytest.mark.parametrize("which", [0, 1, 2])
def test_a_lagrange_polynomial_is_1_at_its_node_and_0_at_the_others(which: int) -> None:
    expected = torch.eye(3, dtype=torch.float64)[which]
    assert torch.allclose(lagrange(NODES, which, torch.tensor(NODES, dtype=torch.float64)), expected)


@pytest.mark.parametrize("power", [0, 1, 2])
def test_the_weights_integrate_polynomials(power: int) -> None:
    weights = adams_weights(NODES, 0.9, 0.5)
    exact = (0.5 ** (power + 1) - 0.9 ** (power + 1)) / (power + 1)
    assert sum(w * node**power for w, node in zip(weights, NODES, strict=True)) == pytest.approx(exact)


def test_equal_steps_give_adams_bashforth() -> None:
    assert adams_weights([3.0, 2.0, 1.0], 3.0, 4.0) == pytest.approx([23 / 12, -16 / 12, 5 / 12])
