from __future__ import annotations

import pytest
import torch

from outboard.engine.sampling.ancestral import FlowRenoise, split_variance

SIGMA, TARGET = torch.tensor(0.9), torch.tensor(0.4)


@pytest.mark.parametrize("eta", [0.0, 0.3, 1.0, 5.0])
def test_the_two_parts_of_a_variance_add_up(eta: float) -> None:
    down, up = split_variance(SIGMA, TARGET, eta)
    assert float(down**2 + up**2) == pytest.approx(0.16)
    assert 0 <= up <= TARGET


def test_without_eta_nothing_is_added() -> None:
    assert list(map(float, split_variance(SIGMA, TARGET, 0.0))) == [float(TARGET), 0]
    renoise = FlowRenoise.between(SIGMA, TARGET, 0.0)
    assert list(map(float, (renoise.down, renoise.keep, renoise.added))) == [float(TARGET), 1, 0]


def test_eta_1_is_the_posterior() -> None:
    down, _ = split_variance(SIGMA, TARGET, 1.0)
    assert float(down) == pytest.approx(0.4**2 / 0.9)


@pytest.mark.parametrize("eta", [0.3, 1.0])
def test_a_flow_is_back_at_its_target(eta: float) -> None:
    renoise = FlowRenoise.between(SIGMA, TARGET, eta)
    signal, noise = 1 - renoise.down, renoise.down
    assert float(renoise.keep * signal) == pytest.approx(0.6)
    assert float((renoise.keep * noise) ** 2 + renoise.added**2) == pytest.approx(0.16)
    assert torch.equal(renoise.apply(torch.zeros(3), torch.ones(3)), renoise.added.expand(3))
