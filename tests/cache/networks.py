"""Small networks of every family that change smoothly with time, as trained ones do, and runs of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor, nn

from models.tiny import CONFIGS, make
from outboard.engine.bench.smooth import smoothed
from outboard.engine.models.model import Model
from outboard.engine.models.registry import FAMILIES

BLOCKS = 6
SIX = ("flux1", "flux2", "qwen_image", "z_image", "ernie_image", "wan")
ALL = (*SIX, "sd3", "chroma", "hunyuan_video", "ltx_video")
DEPTH: dict[str, dict[str, Any]] = {
    "flux1": {"num_layers": 3, "num_single_layers": 3},
    "flux2": {"num_layers": 3, "num_single_layers": 3},
    "chroma": {"num_layers": 3, "num_single_layers": 3},
    "hunyuan_video": {"num_layers": 3, "num_single_layers": 3},
    "ernie_image": {"num_layers": BLOCKS},
    "z_image": {"n_layers": BLOCKS},
}
#: Latents (rows left out), and how a sigma of 0..1 is told to the network.
LATENTS: Mapping[str, tuple[int, ...]] = {
    "flux1": (16, 8, 8),
    "flux2": (8, 4, 4),
    "qwen_image": (4, 1, 8, 8),
    "z_image": (4, 8, 8),
    "ernie_image": (128, 4, 4),
    "wan": (4, 1, 8, 8),
    "sd3": (4, 8, 8),
    "chroma": (4, 8, 8),
    "hunyuan_video": (4, 1, 8, 8),
    "ltx_video": (4, 1, 4, 4),
}
THOUSANDS = ("ernie_image", "wan", "sd3", "hunyuan_video")
POOLED = ("flux1", "sd3", "hunyuan_video")
GUIDED = ("flux1", "hunyuan_video")


@cache
def network(family: str) -> Model:
    """One for all tests: what a test installs it must remove."""
    return build(family)


def build(family: str, **changes: Any) -> Model:
    adapter = next(known for known in FAMILIES if known.name == family)
    config = CONFIGS[family] | DEPTH.get(family, {"num_layers": BLOCKS}) | changes
    with TemporaryDirectory() as folder:
        model = make(adapter, config, Path(folder), told=True)
    smoothed(model.module)
    return model


def conditioning(family: str, rows: int = 1, words: int = 5, seed: int = 0) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(100 + seed)
    given = {"context": torch.randn(rows, words, 24, generator=generator)}
    if family in POOLED:
        given["y"] = torch.randn(rows, 12, generator=generator)
    if family in GUIDED:
        given["guidance"] = torch.full((rows,), 3.5)
    return given


def latent(family: str, rows: int = 1, seed: int = 0, scale: int = 1) -> Tensor:
    channels, *sizes = LATENTS[family]
    sizes = [size * scale for size in sizes[:-1]] + sizes[-1:]
    return torch.randn(rows, channels, *sizes, generator=torch.Generator().manual_seed(seed))


def timestep(family: str, sigma: float, rows: int = 1) -> Tensor:
    return torch.full((rows,), sigma * (1000 if family in THOUSANDS else 1))


@dataclass
class Trace:
    """What a run computed: the latent, and blocks run at each step."""

    latent: Tensor = field(default_factory=lambda: torch.zeros(0))
    blocks: list[int] = field(default_factory=list)


Around = Callable[[int, int, float], AbstractContextManager[Any]]


def sigmas(steps: int) -> list[float]:
    return torch.linspace(1, 0, steps + 1).tolist()


def euler(
    model: Model,
    steps: int,
    *,
    rows: int = 1,
    seed: int = 0,
    words: int = 5,
    around: Around = lambda _index, _total, _sigma: nullcontext(),
    given: Mapping[str, Tensor] | None = None,
    x: Tensor | None = None,
) -> Trace:
    """An Euler run without guidance; `around` is entered for each forward."""
    family = model.family
    given = conditioning(family, rows, words, seed) if given is None else given
    x = latent(family, rows, seed) if x is None else x
    trace, schedule = Trace(), sigmas(steps)
    with Counter(model) as counter:
        for index, (sigma, following) in enumerate(pairwise(schedule)):
            with around(index, steps, sigma):
                v = model.predict(x, timestep(family, sigma, len(x)), given)
            x = x + (following - sigma) * v.float()
            trace.blocks.append(counter.take())
    trace.latent = x
    return trace


class Counter(AbstractContextManager["Counter"]):
    """Counts the blocks that compute, by a part that each of them has."""

    def __init__(self, model: Model) -> None:
        self._parts = [attention_of(block) for block in blocks_of(model.module)]
        self._handles: list[Any] = []
        self._seen = 0

    def __enter__(self) -> Counter:
        self._handles = [part.register_forward_hook(self._count) for part in self._parts]
        return self

    def __exit__(self, *exception: object) -> None:
        for handle in self._handles:
            handle.remove()

    def take(self) -> int:
        seen, self._seen = self._seen, 0
        return seen

    def _count(self, *_: object) -> None:
        self._seen += 1


def blocks_of(module: nn.Module) -> Sequence[nn.Module]:
    lists = ("transformer_blocks", "single_transformer_blocks", "layers", "blocks")
    return [
        block for name in lists if hasattr(module, name) for block in module.get_submodule(name).children()
    ]


def attention_of(block: nn.Module) -> nn.Module:
    names = ("attn", "attention", "self_attention", "attn1")
    return next(block.get_submodule(name) for name in names if hasattr(block, name))


def differ(one: Tensor, two: Tensor) -> float:
    return float((one.double() - two.double()).norm() / two.double().norm())
