from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from outboard.engine.attention import kernels
from outboard.engine.attention.kernels import explicit, kernels_of


def drawn(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("scale", [None, 0.3])
@pytest.mark.parametrize("piece", [1, 3 * 6 * 11 * 4, 1 << 20])
def test_the_steps_written_out_are_attention(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, scale: float | None, piece: int
) -> None:
    monkeypatch.setattr(kernels, "SCORES", piece)
    query, key, value = drawn(2, 3, 17, 8), drawn(2, 3, 11, 8), drawn(2, 3, 11, 8) + 1
    exact = functional.scaled_dot_product_attention(query, key, value, scale=scale)
    given = explicit(query.to(dtype), key.to(dtype), value.to(dtype), scale)
    assert given.dtype == dtype and given.shape == exact.shape
    torch.testing.assert_close(given.float(), exact, atol=1e-5 if dtype == torch.float32 else 3e-2, rtol=0)


def test_heads_may_lie_inside_tokens_as_networks_leave_them() -> None:
    query = drawn(1, 17, 3, 8).transpose(1, 2)
    torch.testing.assert_close(
        explicit(query, query, query), functional.scaled_dot_product_attention(query, query, query)
    )


def test_a_processor_has_a_choice_and_a_device_nothing_is_known_of_has_none() -> None:
    assert list(kernels_of(torch.device("cpu"))) == ["fused", "explicit"]
    assert list(kernels_of(torch.device("mps"))) == ["fused"]
    assert list(kernels_of(torch.device("cuda"))) == ["fused", "cudnn", "flash", "efficient"]
