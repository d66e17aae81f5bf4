from __future__ import annotations

import pytest
import torch

from outboard.engine.sampling.noise import NoiseSource, initial_noise, inpaint_noise
from outboard.protocol.errors import UnsupportedRequestError

LIKE = torch.zeros(2, 3, 4, 4)


def test_noise_between_steps_on_a_cpu_does_not_repeat_the_initial_noise() -> None:
    drawn = NoiseSource(7, LIKE)()
    assert torch.equal(drawn, initial_noise(LIKE.shape, 8))
    assert not torch.equal(drawn, initial_noise(LIKE.shape, 7))


def test_successive_draws_differ() -> None:
    source = NoiseSource(7, LIKE)
    assert not torch.equal(source(), source())


def test_churn_continues_after_the_initial_noise() -> None:
    both = torch.Generator().manual_seed(7)
    initial = torch.randn(LIKE.shape, generator=both)
    assert torch.equal(initial, initial_noise(LIKE.shape, 7))
    assert torch.equal(NoiseSource(7, LIKE).churn(), torch.randn(LIKE.shape, generator=both))


def test_a_cuda_seed_without_a_cuda_device_is_refused_at_the_first_draw(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    source = NoiseSource(7, LIKE, "cuda")
    with pytest.raises(UnsupportedRequestError, match="CUDA"):
        source()


def test_a_row_keeps_its_noise_whatever_the_batch() -> None:
    rows = initial_noise((2, 3, 4, 4), 5, [3, 0])
    assert torch.equal(rows[:1], initial_noise((1, 3, 4, 4), 5, [3]))
    assert torch.equal(rows[1:], initial_noise((1, 3, 4, 4), 5))


def test_the_second_inpaint_noise_is_the_next_seeds() -> None:
    assert torch.equal(inpaint_noise(7, LIKE), initial_noise(LIKE.shape, 8))


def test_the_process_wide_generator_is_left_alone() -> None:
    before = torch.get_rng_state()
    NoiseSource(7, LIKE)()
    initial_noise(LIKE.shape, 7)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.gpu
def test_noise_on_a_gpu_starts_at_the_seed_itself() -> None:
    like = LIKE.cuda()
    expected = torch.randn(like.shape, device="cuda", generator=torch.Generator("cuda").manual_seed(7))
    assert torch.equal(NoiseSource(7, like)(), expected)
    assert torch.equal(NoiseSource(7, like, "cpu")().cpu(), NoiseSource(7, LIKE)())
