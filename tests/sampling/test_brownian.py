from __future__ import annotations

import pytest
import torch

from outboard.engine.sampling.brownian import BrownianNoise
from outboard.protocol.errors import UnsupportedRequestError

LIKE = torch.zeros(1, 2, 64, 64)
SIGMAS = torch.tensor([0.9, 0.6, 0.3, 0.0])


def noise(seed: int = 7, device: str = "cpu") -> BrownianNoise:
    return BrownianNoise(seed, LIKE, SIGMAS, device)


def test_the_noise_of_any_step_has_deviation_1() -> None:
    for start, end in ((0, 1), (1, 2), (0, 2)):
        assert float(noise().between(SIGMAS[start], SIGMAS[end]).std()) == pytest.approx(1, abs=0.03)


def test_steps_follow_one_path_whatever_their_order() -> None:
    source, other = noise(), noise()
    first, second = source.between(SIGMAS[0], SIGMAS[1]), source.between(SIGMAS[1], SIGMAS[2])
    whole = other.between(SIGMAS[0], SIGMAS[2])
    assert torch.allclose(first * 0.3**0.5 + second * 0.3**0.5, whole * 0.6**0.5, atol=1e-5)
    assert torch.equal(other.between(SIGMAS[0], SIGMAS[1]), first)


def test_a_seed_is_a_path() -> None:
    one, same, other = (noise(seed).between(SIGMAS[0], SIGMAS[1]) for seed in (7, 7, 8))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


def test_sigmas_between_the_trees_digits_are_taken_without_a_word() -> None:
    sigmas = torch.tensor([0.98765434, 0.12345674])
    source = BrownianNoise(2**64 - 1, LIKE, sigmas)
    assert source.between(sigmas[0], sigmas[1]).isfinite().all()


def test_a_path_on_a_missing_cuda_device_is_refused_at_the_first_draw(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    source = noise(device="cuda")
    with pytest.raises(UnsupportedRequestError, match="CUDA"):
        source.between(SIGMAS[0], SIGMAS[1])


@pytest.mark.gpu
def test_a_cpu_path_is_the_same_for_a_gpu() -> None:
    source = BrownianNoise(7, LIKE.cuda(), SIGMAS, "cpu")
    ours = source.between(SIGMAS[0], SIGMAS[1])
    assert ours.is_cuda
    assert torch.allclose(ours.cpu(), noise().between(SIGMAS[0], SIGMAS[1]), atol=1e-6)
    assert not torch.allclose(noise(device="cuda").between(SIGMAS[0], SIGMAS[1]), ours.cpu(), atol=0.1)
