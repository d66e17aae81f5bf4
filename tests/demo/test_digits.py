from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from outboard.engine.demo.digits import decode, encode, prompt, to_graph_space, to_model_space
from outboard.protocol.errors import InvalidRequestError


@settings(deadline=None, max_examples=20)
@given(seed=st.integers(0, 2**31), count=st.integers(1, 3))
def test_decode_takes_an_encoded_picture_back(seed: int, count: int) -> None:
    pictures = torch.rand(count, 32, 32, generator=torch.Generator().manual_seed(seed))
    latent = encode(pictures)
    assert latent.shape == (count, 16, 8, 8)
    torch.testing.assert_close(decode(latent), pictures, rtol=0, atol=1e-5)


def test_latent_is_the_pixel_shuffle_of_the_picture() -> None:
    picture = torch.rand(1, 32, 32, generator=torch.Generator().manual_seed(0))
    model_space = to_model_space(encode(picture))
    assert model_space[0, 4 * 1 + 2, 3, 5].item() == pytest.approx(
        2 * picture[0, 13, 22].item() - 1, abs=1e-5
    )


def test_latent_format_is_flux1s() -> None:
    torch.testing.assert_close(to_model_space(torch.tensor([0.1159, 1.1159])), torch.tensor([0.0, 0.3611]))
    latent = torch.randn(4, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(to_graph_space(to_model_space(latent)), latent)


def test_decode_clamps_to_pictures() -> None:
    assert torch.equal(decode(torch.full((1, 16, 8, 8), 50.0)), torch.ones(1, 32, 32))
    assert torch.equal(decode(torch.full((1, 16, 8, 8), -50.0)), torch.zeros(1, 32, 32))


def test_prompts_differ_and_the_empty_one_is_zero() -> None:
    contexts = torch.cat([prompt(digit)["context"] for digit in range(10)])
    pooled = torch.cat([prompt(digit)["y"] for digit in range(10)])
    assert contexts.shape == (10, 4, 64)
    assert pooled.shape == (10, 32)
    similar = F.cosine_similarity(contexts.flatten(1)[:, None], contexts.flatten(1)[None], dim=-1)
    assert (similar - torch.eye(10)).abs().max() < 0.5
    assert not any(tensor.any() for tensor in prompt(None).values())


def test_a_prompt_is_the_callers_own() -> None:
    prompt(3)["context"].zero_()
    assert prompt(3)["context"].any()


@pytest.mark.parametrize("digit", [-1, 10, 55])
def test_prompt_refuses_what_is_no_digit(digit: int) -> None:
    with pytest.raises(InvalidRequestError, match=str(digit)):
        prompt(digit)


@pytest.mark.parametrize("shape", [(16, 8, 8), (1, 16, 8, 4), (1, 4, 8, 8), (1, 16, 1, 8, 8)])
def test_decode_refuses_other_latents(shape: tuple[int, ...]) -> None:
    with pytest.raises(InvalidRequestError, match="16x8x8"):
        decode(torch.zeros(shape))


def test_encode_refuses_other_pictures() -> None:
    with pytest.raises(InvalidRequestError, match="32x32"):
        encode(torch.zeros(1, 64, 64))
