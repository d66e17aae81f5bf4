"""Sinusoids, and timesteps that stay exact on their way to an embedder."""

from __future__ import annotations

import torch
from torch import nn

from outboard.engine.models.embedding import embedded_exactly, sinusoid


def test_a_sinusoid_begins_with_the_cosine_of_the_value_itself() -> None:
    value = torch.tensor([0.0, 2.5])
    embedded = sinusoid(value, width=8, max_period=16.0)
    assert embedded.shape == (2, 8)
    assert torch.equal(embedded[:, 0], value.cos())
    assert torch.allclose(embedded[:, 5], (value / 2).sin())


def test_a_scale_stretches_the_angles() -> None:
    value = torch.tensor([0.25])
    assert torch.allclose(sinusoid(value, scale=1000.0), sinusoid(value * 1000), atol=1e-4)


def test_an_embedder_is_given_the_exact_value_in_its_own_dtype_for_one_call() -> None:
    embedder, exact, rounded = (
        nn.Identity(),
        torch.tensor([0.7009]),
        torch.zeros(1, 256, dtype=torch.bfloat16),
    )
    with embedded_exactly(embedder, exact, scale=1000.0):
        assert torch.equal(embedder(rounded), sinusoid(exact, scale=1000.0).bfloat16())
    assert embedder(rounded) is rounded
