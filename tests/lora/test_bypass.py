from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from lora import files as loras
from lora.models import answer, everywhere, file_of, fresh, memory, patches, same
from models.tiny import differ
from outboard.engine.lora.overlay import Overlay
from outboard.protocol.errors import InvalidRequestError, UnsupportedRequestError

ADDED = ("lora", "lora with alpha", "loha", "lokr", "lokr of factors")
CUT = (loras.PROJ, loras.FUSED, loras.LINEAR1, "final_layer.adaLN_modulation.1")


@pytest.mark.parametrize("kind", ADDED)
@pytest.mark.parametrize("layer", CUT)
def test_beside_the_layer_is_as_good_as_merged(kind: str, layer: str, tmp_path: Path) -> None:
    model = fresh(file_of(tmp_path))
    overlay, base, before = Overlay(model), memory(model), answer(model)
    wanted = patches(model, tmp_path, 0.8, loras.every_kind(layer)[kind])
    overlay.use(wanted)
    merged = answer(model)
    overlay.use(wanted, bypass=True)
    assert same(memory(model), base)
    assert differ(answer(model), merged) < 2e-6
    assert differ(answer(model), before) > 1e-4
    overlay.use(())
    assert torch.equal(answer(model), before)


def test_quantised_weights_are_left_as_they_are(tmp_path: Path) -> None:
    model = fresh(file_of(tmp_path, everywhere("int8_tensorwise")), torch.bfloat16)
    overlay, base, before = Overlay(model), memory(model), answer(model)
    overlay.use(patches(model, tmp_path, 0.8), bypass=True)
    assert same(memory(model), base)
    assert differ(answer(model), before) > 1e-3


def test_a_difference_is_merged_all_the_same(tmp_path: Path) -> None:
    model = fresh(file_of(tmp_path))
    overlay = Overlay(model)
    wanted = patches(model, tmp_path, 0.8, loras.every_kind(loras.PROJ)["diff"])
    assert overlay.use(wanted, bypass=True).weights == len(wanted) == 2


def test_merged_and_beside_go_together(tmp_path: Path) -> None:
    model = fresh(file_of(tmp_path))
    overlay, half = Overlay(model), patches(model, tmp_path, 0.4)
    overlay.use(patches(model, tmp_path, 0.8))
    whole = answer(model)
    overlay.use([*half, *(replace(patch, bypass=True) for patch in half)])
    assert differ(answer(model), whole) < 2e-6


@pytest.mark.parametrize("kind", ["glora", "oft", "boft"])
def test_what_cannot_run_beside_a_layer_in_parts_is_refused(kind: str, tmp_path: Path) -> None:
    model = fresh(file_of(tmp_path))
    overlay, before = Overlay(model), answer(model)
    with pytest.raises(UnsupportedRequestError, match=loras.FUSED):
        overlay.use(patches(model, tmp_path, 0.8, loras.every_kind(loras.FUSED)[kind]), bypass=True)
    assert torch.equal(answer(model), before)


@pytest.mark.parametrize("change", [{"offset": (0, 0, 256)}, {"strength_model": 0.5}])
def test_what_a_bypass_cannot_say_is_refused(change: dict[str, object], tmp_path: Path) -> None:
    model = fresh(file_of(tmp_path))
    (patch,) = patches(model, tmp_path, 0.8, loras.ordinary(loras.PROJ))
    with pytest.raises(UnsupportedRequestError, match="cannot run beside"):
        Overlay(model).use([replace(patch, **change)], bypass=True)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["lora", "loha", "lokr"])
def test_an_adapter_of_another_shape_is_refused_before_it_runs(kind: str, tmp_path: Path) -> None:
    model = fresh(file_of(tmp_path))
    (patch,) = patches(model, tmp_path, 0.8, loras.every_kind(loras.PROJ)[kind])
    with pytest.raises(InvalidRequestError, match="does not fit"):
        Overlay(model).use([replace(patch, key=f"{loras.LINEAR1}.weight")], bypass=True)
