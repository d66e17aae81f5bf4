"""Blocks are skipped from outside, for one forward, in every family that has such blocks."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from models.tiny import CONFIGS, make, noise
from outboard.engine.models.model import Model
from outboard.engine.models.registry import FAMILIES
from outboard.engine.models.skipping import ARGUMENT, DOUBLE, SINGLE, STACKS, skipped
from outboard.protocol.errors import InvalidRequestError, UnsupportedRequestError

#: Latents, and what else a family cannot do without.
INPUTS: Mapping[str, tuple[tuple[int, ...], dict[str, Any]]] = {
    "flux1": ((1, 16, 4, 4), {"y": noise(1, 12), "guidance": torch.ones(1)}),
    "flux2": ((1, 8, 4, 4), {}),
    "chroma": ((1, 4, 4, 4), {"guidance": torch.zeros(1)}),
    "qwen_image": ((1, 4, 1, 4, 4), {}),
    "sd3": ((1, 4, 4, 4), {"y": noise(1, 12)}),
    "wan": ((1, 4, 2, 4, 4), {}),
    "hunyuan_video": ((1, 4, 2, 4, 4), {"y": noise(1, 12), "guidance": torch.ones(1)}),
    "ltx_video": ((1, 4, 2, 3, 5), {"frame_rate": 25}),
    "z_image": ((1, 4, 4, 4), {}),
    "ernie_image": ((1, 128, 4, 4), {}),
}
#: Two blocks of each kind, so that one is left.
DEEPER = {"num_layers": 2, "num_single_layers": 2}
KINDS = [(family, kind) for family, stacks in STACKS.items() for kind in stacks]


def model_of(name: str, folder: Path) -> Model:
    family = next(family for family in FAMILIES if family.name == name)
    config = CONFIGS[name] | {key: value for key, value in DEEPER.items() if key in CONFIGS[name]}
    return make(family, config, folder, told=name == "chroma")


def ask(model: Model, skip: Any = None, **changes: Any) -> torch.Tensor:
    shape, given = INPUTS[model.family]
    arguments = {"context": noise(1, 5, 24), **given, ARGUMENT: skip, **changes}
    return model.predict(noise(*shape), torch.full((1,), 0.7), arguments)


@pytest.mark.parametrize(("name", "kind"), KINDS, ids=lambda value: value)
def test_a_skipped_block_is_as_if_it_were_not_there(name: str, kind: str, tmp_path: Path) -> None:
    model = model_of(name, tmp_path)
    plain, without = ask(model), ask(model, {kind: [0]})
    assert not torch.equal(without, plain)
    assert torch.equal(ask(model), plain)
    blocks: Any = model.module.get_submodule(STACKS[name][kind].name)
    if name != "chroma":  # whose modulation is cut by how many blocks there are
        del blocks[0]
        assert torch.equal(ask(model), without)


@pytest.mark.parametrize("name", STACKS)
def test_nothing_is_left_of_all_blocks_but_what_goes_in(name: str, tmp_path: Path) -> None:
    model = model_of(name, tmp_path)
    every = {kind: [0, 1, 1] for kind in STACKS[name]}
    assert torch.equal(ask(model, every), ask(model, every, context=noise(1, 5, 24) * 2))
    assert not torch.equal(ask(model), ask(model, context=noise(1, 5, 24) * 2))


@pytest.mark.parametrize("name", STACKS)
def test_numbers_beyond_the_last_block_and_absent_kinds_do_nothing(name: str, tmp_path: Path) -> None:
    model = model_of(name, tmp_path)
    beyond = {DOUBLE: [7, 8, 9], SINGLE: [64]}
    absent = {kind: [0] for kind in {DOUBLE, SINGLE} - STACKS[model.family].keys()}
    assert torch.equal(ask(model, beyond | absent), ask(model))


@pytest.mark.parametrize("name", sorted(INPUTS.keys() - STACKS.keys()))
def test_a_family_without_such_blocks_refuses_by_its_name(name: str, tmp_path: Path) -> None:
    model = model_of(name, tmp_path)
    with pytest.raises(UnsupportedRequestError, match=model.adapter.title):
        ask(model, {DOUBLE: [0]})
    assert torch.equal(ask(model, {}), ask(model))


@pytest.mark.parametrize(
    "wrong",
    [[0], {DOUBLE: 0}, {DOUBLE: [-1]}, {DOUBLE: [0.0]}, {DOUBLE: [True]}, {"middle_block": [0]}, "all"],
)
def test_what_is_no_table_of_numbers_is_refused(wrong: Any) -> None:
    with pytest.raises(InvalidRequestError, match=ARGUMENT), skipped(nn.Module(), "wan", "Wan", wrong):
        pass


def test_a_failed_forward_leaves_every_block_as_it_was(tmp_path: Path) -> None:
    model = model_of("wan", tmp_path)
    plain = ask(model)
    with pytest.raises(InvalidRequestError, match="width 24"):
        ask(model, {DOUBLE: [0, 1]}, context=noise(1, 5, 23))
    assert torch.equal(ask(model), plain)


def test_a_forward_that_somebody_replaced_is_put_back(tmp_path: Path) -> None:
    model = model_of("wan", tmp_path)
    block: Any = model.module.get_submodule("blocks.0")
    calls: list[int] = []
    stock = block.forward

    def watched(*inputs: Any, **keywords: Any) -> Any:
        calls.append(1)
        return stock(*inputs, **keywords)

    block.forward = watched
    ask(model, {DOUBLE: [0]})
    assert (calls, block.forward) == ([], watched)
    ask(model)
    assert calls == [1]
