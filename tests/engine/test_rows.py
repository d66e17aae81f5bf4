"""Every row of a batch is its own: two prompts under guidance, together and alone."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import harness
from models.tiny import CONFIGS, make
from outboard.engine.demo.draw import shipped_model
from outboard.engine.models.ernie_image import ErnieImage
from outboard.engine.models.model import Model
from outboard.engine.models.z_image import ZImage
from outboard.engine.rank.blobs import BlobStore
from outboard.engine.rank.peers import Alone
from outboard.engine.rank.run import Outcome, prepare_loop
from outboard.protocol.messages.client import Run
from outboard.protocol.messages.common import Branch, FlowSampling
from outboard.protocol.messages.guidance import Cfg
from outboard.protocol.torch import pack_tree, to_wire

ROWS, STEPS, SEED = 2, 3, 5


def noise(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Model]:
    folder: Path = tmp_path_factory.mktemp("rows")
    return {
        "flux1": shipped_model(),
        "z_image": make(ZImage(), CONFIGS["z_image"], folder),
        "ernie_image": make(ErnieImage(), CONFIGS["ernie_image"], folder),
    }


#: Latent, width of the text, timestep's multiplier, and what else each row is conditioned with.
FAMILIES: Mapping[str, tuple[tuple[int, ...], int, float, dict[str, Tensor]]] = {
    "flux1": ((16, 8, 8), 64, 1.0, {"y": noise(ROWS, 32, seed=9)}),
    "z_image": ((4, 6, 8), 24, 1.0, {}),
    "ernie_image": ((128, 4, 4), 24, 1000.0, {}),
}


def conditioning(family: str, words: int, seed: int) -> dict[str, Tensor]:
    _, width, _, extra = FAMILIES[family]
    return {"context": noise(ROWS, words, width, seed=seed), **extra}


def outcome(family: str, model: Model, lengths: tuple[int, int], rows: slice) -> Outcome:
    shape, _, multiplier, _ = FAMILIES[family]
    start = noise(ROWS, *shape, seed=1)[rows]
    sides = [
        [Branch(id=name, conditioning=pack_tree({key: tensor[rows] for key, tensor in given.items()}))]
        for name, given in (
            ("p", conditioning(family, lengths[0], 2)),
            ("n", conditioning(family, lengths[1], 3)),
        )
    ]
    run = Run(
        model=harness.ref(),
        sampling=FlowSampling(multiplier=multiplier),
        sampler="euler",
        sigmas=to_wire(torch.linspace(1, 0, STEPS + 1)),
        noise=to_wire(start),
        latent=to_wire(torch.zeros_like(start)),
        seed=SEED,
        guidance=Cfg(scale=4.0),
        positive=sides[0],
        negative=sides[1],
    )
    return prepare_loop(run, model, BlobStore(0), check=lambda: None, tell=lambda _: None).sample(Alone())


def difference(one: Tensor, two: Tensor) -> float:
    return float((one - two).abs().max() / two.abs().max())


@pytest.mark.parametrize("lengths", [(7, 7), (7, 40)], ids=["equal", "ragged"])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_row_is_what_it_is_alone(
    models: Mapping[str, Model], family: str, lengths: tuple[int, int]
) -> None:
    model = models[family]
    both = outcome(family, model, lengths, slice(None))
    for row in range(ROWS):
        alone = outcome(family, model, lengths, slice(row, row + 1))
        assert difference(both.latent[row : row + 1], alone.latent) <= 1e-5
    together = lengths[0] == lengths[1] or bool(model.ragged)
    assert both.forwards == STEPS * (1 if together else 2)


def test_the_prompts_differ(models: Mapping[str, Model]) -> None:
    """Else the rows would be equal whatever became of them."""
    latent = outcome("flux1", models["flux1"], (7, 7), slice(None)).latent
    assert difference(latent[:1], latent[1:]) > 0.1


@pytest.mark.parametrize("family", ["z_image", "ernie_image"])
def test_texts_of_two_lengths_in_one_call_are_as_in_two(models: Mapping[str, Model], family: str) -> None:
    model = models[family]
    shape, width, multiplier, _ = FAMILIES[family]
    x, timestep = noise(3, *shape, seed=4), torch.full((3,), 0.6 * multiplier)
    texts: list[Any] = [noise(words, width, seed=words) for words in (5, 33, 70)]
    together = model.predict(x, timestep, {"context": texts})
    for row, text in enumerate(texts):
        alone = model.predict(x[row : row + 1], timestep[row : row + 1], {"context": text[None]})
        assert difference(together[row : row + 1], alone) <= 1e-6
