"""The key table: it covers the module exactly and can be read in both directions."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from models.files import TINY, flux1_shapes, random_tensors, save
from models.tiny import CONFIGS
from outboard.engine.models.family import Family
from outboard.engine.models.flux1 import Flux1, to_checkpoint
from outboard.engine.models.keymap import Copy, completed, fused, identity, renamed, swapped
from outboard.engine.models.keymap import to_checkpoint as gather
from outboard.engine.models.loader import load
from outboard.engine.models.plan import state_shapes
from outboard.engine.models.registry import FAMILIES
from outboard.protocol.errors import CheckpointError


def flux1_state() -> dict[str, torch.Tensor]:
    return random_tensors({name: tuple(shape) for name, shape in state_shapes(Flux1().build(TINY)).items()})


def test_flux1_exports_the_published_key_names_and_shapes() -> None:
    exported = to_checkpoint(flux1_state())
    assert {name: tuple(tensor.shape) for name, tensor in exported.items()} == flux1_shapes()


def test_fused_layers_are_stacked_in_the_files_order() -> None:
    state = flux1_state()
    exported = to_checkpoint(state)
    block = "single_transformer_blocks.1."
    parts = [state[f"{block}{part}.weight"] for part in ("attn.to_q", "attn.to_k", "attn.to_v", "proj_mlp")]
    assert torch.equal(exported["single_blocks.1.linear1.weight"], torch.cat(parts))


def test_shift_and_scale_of_the_last_layer_change_places() -> None:
    state = flux1_state()
    scale, shift = state["norm_out.linear.bias"].chunk(2)
    assert torch.equal(to_checkpoint(state)["final_layer.adaLN_modulation.1.bias"], torch.cat([shift, scale]))


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_every_row_of_every_tensor_is_tied_exactly_once(family: Family) -> None:
    shapes = state_shapes(family.build(CONFIGS[family.name]))
    rows = {name: torch.zeros(shape[0]) for name, shape in shapes.items()}
    for copy in family.key_map(shapes):
        rows[copy.target][slice(*(copy.target_rows or (None,)))] += 1
    assert all(torch.equal(count, torch.ones_like(count)) for count in rows.values())


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_a_module_can_be_written_as_a_file_and_read_back(family: Family, tmp_path: Path) -> None:
    shapes = state_shapes(family.build(CONFIGS[family.name]))
    state = random_tensors({name: tuple(shape) for name, shape in shapes.items()})
    path = save(tmp_path / "m.safetensors", gather(state, list(family.key_map(shapes))))
    config = CONFIGS[family.name]
    back = load(path, dtype=torch.bfloat16, device=torch.device("cpu"), config=config).module.state_dict()
    assert all(torch.equal(back[name], tensor) for name, tensor in state.items())


TABLE = {"blocks.*.attn.q": "layers.*.query", "blocks.*.attn": "layers.*.attention", "out": "head.0"}


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("blocks.3.attn.q.weight", "layers.3.query.weight"),
        ("blocks.12.attn.k.0.bias", "layers.12.attention.k.0.bias"),
        ("out.weight", "head.0.weight"),
        ("output.weight", "output.weight"),
        ("blocks.3.norm.weight", "blocks.3.norm.weight"),
        ("table", "table"),
    ],
)
def test_renamed_follows_the_longest_entry_that_fits_whole_names(name: str, source: str) -> None:
    assert list(renamed([name], TABLE)) == [Copy(source, name)]


def test_completed_leaves_out_what_the_module_does_not_have() -> None:
    copies = completed(
        fused("qkv", [("q", 2), ("k", 2)]), {"q.weight": (2, 4), "k.weight": (2, 4), "o": (4,)}, {}
    )
    assert [(copy.source, copy.target) for copy in copies] == [
        ("qkv.weight", "q.weight"),
        ("qkv.weight", "k.weight"),
        ("o", "o"),
    ]


@pytest.mark.parametrize("change", ["missing", "surplus"])
def test_a_state_dict_of_another_layout_is_refused(change: str) -> None:
    state = flux1_state()
    if change == "missing":
        del state["norm_out.linear.bias"]
    else:
        state["extra"] = torch.zeros(1)
    with pytest.raises(CheckpointError, match=change):
        to_checkpoint(state)


def test_identity_shares_memory_and_slices_do_not() -> None:
    whole, part = torch.arange(4.0), torch.arange(2.0)
    copies = [*identity(["a"]), Copy("f", "b", (0, 2), (0, 2))]
    tensors = gather({"a": whole, "b": part}, copies)
    assert tensors["a"].data_ptr() == whole.data_ptr()
    assert tensors["f"].data_ptr() != part.data_ptr()


def test_fused_and_swapped_name_weight_and_bias() -> None:
    assert [copy.source for copy in fused("f", [("a", 2), ("b", 3)])] == ["f.weight"] * 2 + ["f.bias"] * 2
    assert [copy.source_rows for copy in fused("f", [("a", 2), ("b", 3)])] == [(0, 2), (2, 5)] * 2
    assert [copy.target_rows for copy in swapped("f", "a", 2)] == [(2, 4), (0, 2)] * 2
