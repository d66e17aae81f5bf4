from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from lora import files as loras
from lora.models import (
    answer,
    everywhere,
    file_of,
    fresh,
    in_few_bits,
    kept_as_on_a_gpu,
    memory,
    patches,
    same,
)
from models import gguf_files
from models.files import save
from models.quant import files
from models.tiny import differ
from outboard.engine.lora import plain
from outboard.engine.lora.overlay import Overlay, Touched
from outboard.engine.models.model import Model
from outboard.engine.models.quant.formats import FORMATS
from outboard.protocol.errors import CheckpointError, InvalidRequestError, UnsupportedRequestError

DTYPES = (torch.float32, torch.bfloat16)


def there_and_back(model: Model, folder: Path, tensors: loras.Tensors | None = None) -> None:
    """off, on, off, on; and 0.8, 0.9, 0.8: each state the same, bit for bit, however it was reached."""
    overlay, base, before = Overlay(model), memory(model), answer(model)
    low, high = patches(model, folder, 0.8, tensors), patches(model, folder, 0.9, tensors)
    overlay.use(low)
    first, on = memory(model), answer(model)
    overlay.use(high)
    assert differ(answer(model), on) > 0
    overlay.use(low)
    assert same(memory(model), first)
    assert torch.equal(answer(model), on)
    overlay.use(())
    assert same(memory(model), base)
    assert torch.equal(answer(model), before)
    overlay.use(low)
    assert same(memory(model), first)
    assert torch.equal(answer(model), on)
    assert differ(on, before) > 1e-3


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_strength_changed_and_changed_back_leaves_no_trace(dtype: torch.dtype, tmp_path: Path) -> None:
    path = file_of(tmp_path)
    there_and_back(fresh(path, dtype), tmp_path)
    model, other = fresh(path, dtype), fresh(path, dtype)
    overlay = Overlay(model)
    for strength in (0.8, 0.9, -0.3, 0.8):
        overlay.use(patches(model, tmp_path, strength))
    Overlay(other).use(patches(other, tmp_path, 0.8))
    assert same(memory(model), memory(other))


@pytest.mark.parametrize("kind", loras.KINDS)
def test_no_kind_leaves_a_trace(kind: str, tmp_path: Path) -> None:
    if kind != "set":  # whose strength does not matter
        there_and_back(fresh(file_of(tmp_path)), tmp_path, loras.every_kind(loras.FUSED)[kind])
    model = fresh(file_of(tmp_path))
    base, overlay = memory(model), Overlay(model)
    overlay.use(patches(model, tmp_path, 0.8, loras.every_kind(loras.LINEAR1)[kind]))
    assert not same(memory(model), base)
    overlay.use(())
    assert same(memory(model), base)


@pytest.mark.parametrize("name", FORMATS)
def test_quantised_weights_are_the_same_after_every_way(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = file_of(tmp_path, everywhere(name))
    there_and_back(fresh(path, torch.bfloat16), tmp_path)
    kept = kept_as_on_a_gpu(path, monkeypatch, torch.float32)
    assert in_few_bits(kept)
    there_and_back(kept, tmp_path)


@pytest.mark.parametrize("name", FORMATS)
def test_what_stays_in_few_bits_is_what_is_unpacked(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = file_of(tmp_path, everywhere(name))
    plain, kept = fresh(path), kept_as_on_a_gpu(path, monkeypatch, torch.float32)
    for model in (plain, kept):
        Overlay(model).use(patches(model, tmp_path, 0.8))
    assert torch.equal(answer(plain), answer(kept))


@pytest.mark.parametrize("weight_dtype", ["fp8_e4m3fn", "fp8_e5m2"])
def test_weights_rounded_to_fp8_are_rounded_again(weight_dtype: str, tmp_path: Path) -> None:
    model = fresh(file_of(tmp_path), torch.bfloat16, weight_dtype)
    there_and_back(model, tmp_path)
    Overlay(model).use(patches(model, tmp_path, 0.8))
    values = model.module.get_parameter("transformer_blocks.0.attn.to_q.weight")
    fp8 = torch.float8_e4m3fn if weight_dtype == "fp8_e4m3fn" else torch.float8_e5m2
    assert torch.equal(values.to(fp8).to(torch.bfloat16), values)


def test_fp8_that_nobody_asked_for_is_changed_by_its_values(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensors = files.plain()
    key = f"{loras.PROJ}.weight"
    path = save(tmp_path / "model.safetensors", tensors | {key: tensors[key].to(torch.float8_e4m3fn)})
    plain, kept = fresh(path), kept_as_on_a_gpu(path, monkeypatch, torch.float32)
    assert in_few_bits(kept)
    for model in (plain, kept):
        there_and_back(model, tmp_path, loras.ordinary(loras.PROJ))
    model = fresh(path)
    (patch,) = patches(model, tmp_path, 0.8, loras.ordinary(loras.PROJ))
    Overlay(model).use([patch])
    expected = (
        tensors[key].to(torch.float8_e4m3fn).float() + 0.8 * patch.tensors["up"] @ patch.tensors["down"]
    )
    values = model.module.get_parameter("transformer_blocks.0.attn.to_out.0.weight")
    assert torch.allclose(values, expected, atol=1e-6)


@pytest.mark.parametrize("kind", ["lora", "dora by rows", "diff"])
def test_gguf_weights_are_changed_where_they_are_unpacked(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, _ = gguf_files.flux1(tmp_path / "m.gguf", "Q8_0")
    tensors = loras.every_kind(loras.FUSED)[kind] | loras.every_kind(loras.PROJ)[kind]
    plain, kept = fresh(path), kept_as_on_a_gpu(path, monkeypatch, torch.float32)
    assert in_few_bits(kept)
    for model in (plain, kept):
        there_and_back(model, tmp_path, tensors)
    assert differ(answer(kept), answer(plain)) < 1e-6


def test_only_what_changed_is_written(tmp_path: Path) -> None:
    model = fresh(file_of(tmp_path))
    overlay = Overlay(model)
    one, two = (patches(model, tmp_path, 0.8, loras.ordinary(layer)) for layer in (loras.PROJ, loras.MLP))
    size = model.module.get_parameter("transformer_blocks.0.attn.to_out.0.weight").nbytes
    assert overlay.use(one) == Touched(1, size)
    assert overlay.use(one) == Touched(0, 0)
    assert overlay.use(patches(model, tmp_path, 0.8, loras.ordinary(loras.PROJ))) == Touched(0, 0)
    assert overlay.use([*one, *two]).weights == 1
    assert overlay.use([replace(one[0], strength=0.9), *two]) == Touched(1, size)
    assert overlay.use(two) == Touched(1, size)
    assert overlay.use(()).weights == 1
    assert overlay.use(()) == Touched(0, 0)


@pytest.mark.parametrize("dtype", DTYPES)
def test_weights_keep_their_places_in_memory(dtype: torch.dtype, tmp_path: Path) -> None:
    model = fresh(file_of(tmp_path), dtype)
    places = {name: (id(tensor), tensor.data_ptr()) for name, tensor in model.module.named_parameters()}
    overlay = Overlay(model)
    for wanted in (patches(model, tmp_path, 0.8), patches(model, tmp_path, 0.9, None), []):
        overlay.use(wanted)
        assert places == {
            name: (id(tensor), tensor.data_ptr()) for name, tensor in model.module.named_parameters()
        }


def test_chained_patches_add_up_and_a_negative_one_takes_away(tmp_path: Path) -> None:
    model = fresh(file_of(tmp_path))
    overlay, before = Overlay(model), answer(model)
    plus, minus = patches(model, tmp_path, 0.5), patches(model, tmp_path, -0.5)
    overlay.use([*plus, *plus])
    twice = answer(model)
    overlay.use(patches(model, tmp_path, 1.0))
    assert differ(twice, answer(model)) < 1e-6
    overlay.use([*plus, *minus])
    assert differ(answer(model), before) < 1e-6
    overlay.use(minus)
    assert differ(answer(model), before) > 1e-3


def test_a_strength_of_the_model_weakens_the_weight(tmp_path: Path) -> None:
    model = fresh(file_of(tmp_path))
    (patch,) = patches(model, tmp_path, 0.0, loras.ordinary(loras.PROJ))
    weight = model.module.get_parameter("transformer_blocks.0.attn.to_out.0.weight")
    base = weight.clone()
    Overlay(model).use([replace(patch, strength_model=0.25)])
    assert torch.equal(weight, base * 0.25)


@pytest.mark.parametrize("bypass", [False, True])
def test_a_failure_half_way_leaves_the_base(
    bypass: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = fresh(file_of(tmp_path))
    overlay, base, before = Overlay(model), memory(model), answer(model)
    overlay.use(patches(model, tmp_path, 0.4), bypass=bypass)
    written = []

    def write(store: plain.PlainStore, patches: object) -> int:
        written.append(store)
        if len(written) == 3:
            raise MemoryError
        return original(store, patches)  # type: ignore[arg-type]

    original = plain.PlainStore.write
    monkeypatch.setattr(plain.PlainStore, "write", write)
    with pytest.raises(MemoryError):
        overlay.use(patches(model, tmp_path, 0.8))
    assert len(written) == 3
    assert same(memory(model), base)
    assert torch.equal(answer(model), before)
    monkeypatch.undo()
    overlay.use(patches(model, tmp_path, 0.8))
    assert differ(answer(model), before) > 1e-3


def test_a_weight_that_the_model_lacks_is_named(tmp_path: Path) -> None:
    model = fresh(file_of(tmp_path))
    overlay, base = Overlay(model), memory(model)
    good = patches(model, tmp_path, 0.8)
    overlay.use(good)
    with pytest.raises(InvalidRequestError, match=r"FLUX\.1 has no weight 'layers\.0\.w'"):
        overlay.use([*good, replace(good[0], key="layers.0.w")])
    assert same(memory(model), base)


@pytest.mark.parametrize("kind", ["lora", "loha", "lokr", "diff", "oft"])
def test_a_patch_of_another_shape_is_named(kind: str, tmp_path: Path) -> None:
    model = fresh(file_of(tmp_path))
    overlay, base = Overlay(model), memory(model)
    good = patches(model, tmp_path, 0.8, loras.every_kind(loras.PROJ)[kind])
    with pytest.raises(InvalidRequestError, match=r"which its \w+ patch does not fit"):
        overlay.use([*good, replace(good[0], key=f"{loras.LINEAR1}.weight")])
    assert same(memory(model), base)


def test_a_lora_that_widens_a_layer_is_refused(tmp_path: Path) -> None:
    model = fresh(file_of(tmp_path))
    tensors = loras.ordinary("img_in") | {"diffusion_model.img_in.reshape_weight": torch.tensor([256, 128])}
    with pytest.raises(UnsupportedRequestError, match=r"img_in\.weight"):
        Overlay(model).use(patches(model, tmp_path, 0.8, tensors))


def test_rows_named_by_an_offset_are_the_only_ones_changed(tmp_path: Path) -> None:
    model = fresh(file_of(tmp_path))
    base, hidden = memory(model), 256
    (patch,) = patches(model, tmp_path, 0.8, loras.ordinary(loras.PROJ))
    rows = replace(patch, key=f"{loras.FUSED}.weight", offset=(0, hidden, hidden))
    Overlay(model).use([rows])
    changed = [name for name, tensor in memory(model).items() if not torch.equal(tensor, base[name])]
    assert changed == ["transformer_blocks.0.attn.to_k.weight"]
    with pytest.raises(InvalidRequestError, match=r"does not fit"):
        Overlay(model).use([replace(rows, offset=(0, 3 * hidden, hidden))])


def test_a_quantised_file_that_was_replaced_is_found_out(tmp_path: Path) -> None:
    path = file_of(tmp_path, everywhere("float8_e4m3fn"))
    model = fresh(path)
    wanted = patches(model, tmp_path, 0.8)
    path.unlink()
    file_of(tmp_path)
    with pytest.raises(CheckpointError, match="no longer the file"):
        Overlay(model).use(wanted)


def test_a_compiled_network_sees_the_new_weights_without_compiling_anew(tmp_path: Path) -> None:
    model = fresh(file_of(tmp_path))
    graphs = []

    def backend(graph: torch.fx.GraphModule, _inputs: object) -> torch.fx.GraphModule:
        graphs.append(graph)
        return graph

    block = model.module.get_submodule("transformer_blocks.0.ff")
    compiled = torch.compile(block, backend=backend)
    x = loras.noise(1, 4, 256)
    before, overlay = compiled(x), Overlay(model)
    for strength in (0.8, 0.9):
        overlay.use(patches(model, tmp_path, strength, loras.ordinary(loras.MLP)))
        assert torch.equal(compiled(x), block(x))
        assert differ(compiled(x), before) > 1e-3
    overlay.use(())
    assert torch.equal(compiled(x), before)
    assert len(graphs) == 1
