"""Reads a drawn digit, without being told which one was asked for.

A small convolutional network, trained on real digits and on junk: plain fields, noise, blends of two
digits, digits with their tiles out of order. Junk is a class of its own: a mess gets no digit by luck.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from .assets import JUDGE, PICTURE_SIZE

JUNK = 10


@dataclass(frozen=True)
class Reading:
    """The likeliest digit and its probability; below one half the picture is no digit to speak of."""

    digit: int
    confidence: float

    def is_digit(self, asked: int) -> bool:
        """Whether the picture shows this digit, and clearly."""
        return self.digit == asked and self.confidence > 0.5


def read(picture: Tensor) -> Reading:
    """Read one picture [32, 32] in [0, 1]."""
    return read_all(picture[None])[0]


@torch.inference_mode()
def read_all(pictures: Tensor) -> list[Reading]:
    """Read pictures [B, 32, 32] in [0, 1]."""
    probabilities = _network()(pictures.float().cpu()).softmax(-1)[:, :JUNK]
    confidence, digit = probabilities.max(-1)
    return [Reading(int(d), float(c)) for d, c in zip(digit, confidence, strict=True)]


class Network(nn.Module):
    """[B, 32, 32] -> logits [B, 11]: ten digits and junk."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, 16, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(32, 48, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(48 * (PICTURE_SIZE // 8) ** 2, 64),
            nn.ReLU(),
            nn.Linear(64, JUNK + 1),
        )

    def forward(self, pictures: Tensor) -> Tensor:
        logits: Tensor = self.layers(pictures[:, None] * 2 - 1)
        return logits


@lru_cache(maxsize=1)
def _network() -> Network:
    network = Network()
    network.load_state_dict({name: value.float() for name, value in load_file(JUDGE).items()})
    return network.eval()
