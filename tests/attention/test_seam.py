from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from outboard.engine.attention.kernels import Kernel
from outboard.engine.attention.seam import Attention

TOKENS = torch.randn(1, 2, 5, 8, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def attention(monkeypatch: pytest.MonkeyPatch) -> Attention:
    """One whose chosen kernel is told from torch's own: it answers zeros."""

    def kernel(*_: torch.Tensor) -> Kernel:
        return lambda query, _key, _value, _scale: torch.zeros_like(query)

    attention = Attention()
    monkeypatch.setattr(attention.choice, "kernel", kernel)
    return attention


def attend(mask: torch.Tensor | None = None, *, causal: bool = False) -> torch.Tensor:
    return functional.scaled_dot_product_attention(TOKENS, TOKENS, TOKENS, attn_mask=mask, is_causal=causal)


def test_the_chosen_kernel_computes_what_runs_inside_and_nothing_outside(attention: Attention) -> None:
    outside = attend()
    with attention:
        assert not attend().any()
    assert torch.equal(attend(), outside) and outside.any()


@pytest.mark.parametrize(
    "mask",
    [torch.ones(1, 1, 1, 5, dtype=torch.bool), torch.zeros(5, 5), torch.ones(5, 5, dtype=torch.bool)],
    ids=["words", "added", "pairs"],
)
def test_a_mask_that_masks_nothing_is_dropped(attention: Attention, mask: torch.Tensor) -> None:
    with attention:
        assert not attend(mask).any()


def test_a_mask_that_masks_something_counts(attention: Attention) -> None:
    mask = torch.ones(1, 1, 1, 5, dtype=torch.bool)
    mask[..., 4] = False
    masked = attend(mask)
    with attention:
        assert torch.equal(attend(mask), masked)
        assert not attend(torch.ones_like(mask)).any()
        assert torch.equal(attend(mask), masked)


def test_a_mask_that_changed_since_is_looked_at_again(attention: Attention) -> None:
    mask = torch.ones(1, 1, 1, 5, dtype=torch.bool)
    with attention:
        assert not attend(mask).any()
    mask[..., 4] = False
    with attention:
        assert attend(mask).any()


def test_causal_attention_is_left_to_torch(attention: Attention) -> None:
    causal = attend(causal=True)
    with attention:
        assert torch.equal(attend(causal=True), causal)


def test_the_real_choice_gives_attention() -> None:
    plain = attend()
    with Attention():
        torch.testing.assert_close(attend(), plain)
