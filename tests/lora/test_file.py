from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from lora import files as loras
from lora.models import file_of, fresh, memory, patches, same
from models.files import file_shapes, random_tensors, save
from models.tiny import CONFIGS
from outboard.engine.lora.file import read_lora
from outboard.engine.lora.layout import layout_of
from outboard.engine.lora.names import comfy_name, lora_names
from outboard.engine.lora.overlay import Overlay
from outboard.engine.lora.patch import Patch
from outboard.engine.lora.swap import swapped_halves
from outboard.engine.models.contents import Contents
from outboard.engine.models.header import read_header
from outboard.engine.models.loader import inspect
from outboard.engine.models.registry import FAMILIES, Detected
from outboard.protocol.errors import (
    CheckpointError,
    InvalidRequestError,
    UnsupportedModelError,
    UnsupportedRequestError,
)

PREFIX = "diffusion_model."


def detected(folder: Path, name: str) -> Detected:
    family = next(family for family in FAMILIES if family.name == name)
    weights = random_tensors(file_shapes(family, CONFIGS[name]))
    config = CONFIGS[name] if name == "chroma" else None
    path = save(folder / f"{name}.safetensors", weights)
    if name != "chroma":
        return inspect(path, config)
    return Detected(family, CONFIGS[name], "", read_contents(path), {key: key for key in weights}, {})


def read_contents(path: Path) -> Contents:
    return Contents(path, read_header(path).tensors)


@pytest.mark.parametrize("name", CONFIGS)
def test_every_weight_has_its_full_name_and_is_found_by_it(name: str, tmp_path: Path) -> None:
    layout = layout_of(detected(tmp_path, name))
    names = lora_names(layout)
    for key in layout.weights:
        comfy = comfy_name(name, key)
        assert layout.find(comfy).key == layout.find(key).key == key
        full = PREFIX + comfy.removesuffix(".weight")
        assert names[full].key == comfy
    for spot in names.values():
        shape = layout.find(spot.key).shape
        assert spot.offset is None or spot.offset[1] + spot.offset[2] <= shape[0]


def test_a_file_is_read_for_a_model_that_is_not_loaded(tmp_path: Path) -> None:
    path = loras.save(tmp_path / "lora.safetensors", loras.ordinary())
    file = file_of(tmp_path)
    assert read_lora(path, inspect(file)).matched == read_lora(path, fresh(file)).matched == 5


def test_what_has_no_place_is_reported(tmp_path: Path) -> None:
    tensors = loras.ordinary(loras.PROJ) | {
        f"{PREFIX}gone.lora_up.weight": torch.ones(2, 2),
        f"{PREFIX}img_in.alpha": torch.tensor(1.0),
        f"{PREFIX}double_blocks.0.img_attn.norm.key_norm.diff_b": torch.ones(128),
    }
    found = read_lora(loras.save(tmp_path / "l.safetensors", tensors), inspect(file_of(tmp_path)))
    assert found.matched == 1
    assert set(found.unmatched) == set(tensors) - set(loras.ordinary(loras.PROJ)) - {f"{PREFIX}img_in.alpha"}


def test_a_lora_of_another_model_is_refused_by_name(tmp_path: Path) -> None:
    path = loras.save(tmp_path / "l.safetensors", {"lora_unet_nothing.lora_up.weight": torch.ones(2, 2)})
    with pytest.raises(
        CheckpointError, match=r"l\.safetensors: none of its 1 keys belongs to FLUX\.1: lora_unet"
    ):
        read_lora(path, inspect(file_of(tmp_path)))


def test_a_file_that_is_no_lora_is_refused(tmp_path: Path) -> None:
    model = file_of(tmp_path)
    with pytest.raises(CheckpointError, match="is no LoRA"):
        read_lora(model, inspect(model))
    (tmp_path / "l.pt").write_bytes(b"PK\x03\x04" * 64)
    with pytest.raises(UnsupportedModelError, match="never opened"):
        read_lora(tmp_path / "l.pt", inspect(model))


def test_half_a_pair_is_refused(tmp_path: Path) -> None:
    tensors = {f"{PREFIX}{loras.PROJ}.lora_up.weight": torch.ones(256, 4)}
    with pytest.raises(CheckpointError, match=r"lacks its tensor .*lora_down"):
        read_lora(loras.save(tmp_path / "l.safetensors", tensors), inspect(file_of(tmp_path)))


def test_of_two_names_for_one_weight_comfyuis_last_counts(tmp_path: Path) -> None:
    pair = loras.lora(256, 256)
    flat = "lora_unet_" + loras.PROJ.replace(".", "_")
    tensors = {f"{PREFIX}{loras.PROJ}.{part}": tensor for part, tensor in pair.items()}
    tensors |= {f"{flat}.{part}": tensor * 3 for part, tensor in pair.items()}
    (patch,) = read_lora(loras.save(tmp_path / "l.safetensors", tensors), inspect(file_of(tmp_path))).patches
    assert torch.equal(patch.tensors["up"], pair["lora_up.weight"])


def test_a_control_lora_is_told_by_its_layers(tmp_path: Path) -> None:
    tensors = {
        "img_in.lora_A.weight": loras.noise(4, 128),
        "img_in.lora_B.weight": loras.noise(256, 4),
        "img_in.lora_B.bias": loras.noise(256),
        "single_blocks.0.norm.key_norm.scale": loras.noise(128),
    }
    path = loras.save(tmp_path / "l.safetensors", tensors)
    found = read_lora(path, inspect(file_of(tmp_path)))
    kinds = {patch.key: patch.kind for patch in found.patches}
    assert kinds == {
        "img_in.weight": "lora",
        "img_in.bias": "diff",
        "single_blocks.0.norm.key_norm.weight": "set",
    }
    (widened,) = (patch for patch in found.patches if patch.kind == "lora")
    assert widened.tensors["reshape"].tolist() == [256, 128]


@pytest.mark.parametrize("kind", ["lora", "loha", "lokr", "diff", "dora by columns"])
def test_halves_are_swapped_within_the_factors(kind: str, tmp_path: Path) -> None:
    model = fresh(file_of(tmp_path))
    base, weight = memory(model), model.module.get_parameter("transformer_blocks.0.ff.net.2.weight")
    found = patches(model, tmp_path, 1.0, loras.every_kind(loras.MLP)[kind])
    patch = next(patch for patch in found if patch.key.endswith("weight"))
    patch = replace(patch, tensors={k: v for k, v in patch.tensors.items() if k != "dora_scale"})
    overlay, before = Overlay(model), weight.clone()
    overlay.use([patch])
    straight = weight - before
    overlay.use([swapped_halves(patch)])
    assert torch.allclose(weight - before, straight.roll(128, 0), atol=1e-6)
    overlay.use(())
    assert same(memory(model), base)


def test_a_rotation_cannot_be_swapped() -> None:
    with pytest.raises(UnsupportedRequestError, match="'oft'"):
        swapped_halves(Patch("w", "oft", {"blocks": torch.zeros(1, 2, 2)}, 1.0))


@pytest.mark.parametrize(
    ("kind", "names"),
    [("lora", ["up"]), ("lokr", ["w1"]), ("lokr", ["w1", "w2_a"]), ("diff", ["diff", "up"]), ("oft", [])],
)
def test_a_patch_with_the_wrong_tensors_is_refused(kind: str, names: list[str]) -> None:
    with pytest.raises(InvalidRequestError, match=r"'some\.weight'"):
        Patch("some.weight", kind, dict.fromkeys(names, torch.ones(1)), 1.0)


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(UnsupportedRequestError, match="'model_as_lora'"):
        Patch("some.weight", "model_as_lora", {}, 1.0)
