"""Seeded noise, drawn from the same generators, in the same order, as ComfyUI draws it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import torch
from torch import Tensor

from ...protocol.errors import UnsupportedRequestError


class NoiseSource:
    """The noise a stochastic sampler adds between steps.

    `seed` is the run's seed and `like` gives shape, dtype and device. `device` is the type of the device
    ComfyUI samples on ("cpu", "cuda"; "" means that of `like`), because each type has its own generator:
    on "cpu" it starts at `seed + 1`, so as not to repeat the initial noise, elsewhere at `seed`.
    Raises `UnsupportedRequestError` at the first draw when this machine lacks that kind of device.
    """

    def __init__(self, seed: int, like: Tensor, device: str = "") -> None:
        self._seed = seed
        self._like = like
        same = device in ("", like.device.type)
        self._device = like.device if same else torch.device(device)

    def __call__(self) -> Tensor:
        """Return the next standard normal tensor, shaped and placed like `like`."""
        return self._draw(self._between_steps)

    def churn(self) -> Tensor:
        """Return the next draw for `s_churn`, which continues the generator the initial noise came from."""
        return self._draw(self._after_initial_noise)

    @cached_property
    def _between_steps(self) -> torch.Generator:
        return _generator(self._device, self._seed + 1 if self._device.type == "cpu" else self._seed)

    @cached_property
    def _after_initial_noise(self) -> torch.Generator:
        generator = _generator(self._device, self._seed)
        if self._device.type == "cpu":
            torch.randn(self._like.shape, generator=generator)
        return generator

    def _draw(self, generator: torch.Generator) -> Tensor:
        like = self._like
        drawn = torch.randn(like.shape, dtype=like.dtype, device=self._device, generator=generator)
        return drawn.to(like.device)


def initial_noise(shape: Sequence[int], seed: int, batch_index: Sequence[int] | None = None) -> Tensor:
    """Return the float32 CPU noise a run of `seed` starts from, of `shape` [B, C, ...].

    With `batch_index`, row i is the noise that row `batch_index[i]` of a longer batch would get,
    whatever the batch it is drawn in.
    """
    generator = _generator(torch.device("cpu"), seed)
    if batch_index is None:
        return torch.randn(tuple(shape), generator=generator)
    rows = [torch.randn((1, *shape[1:]), generator=generator) for _ in range(max(batch_index) + 1)]
    return torch.cat([rows[index] for index in batch_index])


def inpaint_noise(seed: int, like: Tensor) -> Tensor:
    """Return the second noise that `ddim` fills the kept region with: a CPU draw of `seed + 1`."""
    return initial_noise(like.shape, seed + 1).to(like)


def require_device(device: torch.device) -> None:
    """Raise `UnsupportedRequestError` when this machine has no such device to draw noise on."""
    if device.type == "cuda" and not torch.cuda.is_available():
        raise UnsupportedRequestError(
            "This sampler draws its noise on a CUDA device, and the engine runs without one.",
            hint="Choose a deterministic sampler such as euler, or an engine with a CUDA device.",
        )


def _generator(device: torch.device, seed: int) -> torch.Generator:
    require_device(device)
    return torch.Generator(device).manual_seed(seed)
