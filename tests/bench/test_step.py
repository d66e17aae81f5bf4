"""The step benchmark, on one tiny model, with a stand-in for ComfyUI or without any."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from math import inf, isnan
from pathlib import Path

import pytest
import torch

from models.files import TINY
from outboard.engine.bench import step
from outboard.engine.bench.comfyui import find_comfyui, find_python
from outboard.engine.bench.row import Row
from outboard.engine.bench.subjects import SUBJECTS, Subject
from outboard.engine.models.registry import FAMILIES
from outboard.protocol.errors import InternalError

FLUX = next(subject for subject in SUBJECTS if subject.family == "flux1")
SMALL = replace(
    FLUX,
    config=TINY,
    latent=(1, 16, 6, 6),
    conditioning={"context": (1, 3, 24), "y": (1, 12), "guidance": (1,)},
)
MODULE = """
import torch

class Flux(torch.nn.Module):
    def __init__(self, image_model, dtype, device, operations, **arguments):
        super().__init__()
        assert arguments["hidden_size"] == 512 and operations == "operations"

    def load_state_dict(self, state, strict):
        assert "single_blocks.0.norm.query_norm.weight" in state and strict

    def forward(self, x, timestep, context, y, guidance):
        assert timestep.dtype == torch.float32 and y.dtype == x.dtype
        return x
"""


@pytest.fixture
def comfyui(tmp_path: Path) -> Path:
    """A folder that looks like ComfyUI, whose FLUX answers its input."""
    files = {
        "ops.py": "disable_weight_init = 'operations'",
        "options.py": "def enable_args_parsing(): print('noise')",
        "ldm/flux/model.py": MODULE,
    }
    for name, text in files.items():
        path = tmp_path / "ComfyUI" / "comfy" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return tmp_path / "ComfyUI"


def measure(comfyui: Path) -> Iterator[Row]:
    return step.rows(comfyui, Path(sys.executable), subjects=[SMALL], pairs=3)


def test_every_side_is_timed_and_compared(comfyui: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step, "AGREE", dict.fromkeys(step.DTYPES, inf))
    rows = list(measure(comfyui))
    assert [row.case for row in rows] == ["flux1 float32"] * 5 + ["flux1 bfloat16"] * 5
    assert [row.metric for row in rows[:5]] == [
        "diffusers",
        "ours",
        "ComfyUI",
        "ours / diffusers",
        "ours / ComfyUI",
    ]
    assert all(row.value > 0 for row in rows)
    assert [row.target for row in rows[:5]] == [None] * 4 + [1.0]
    # The stand-in does nothing, so nothing is as fast.
    assert [row.ok for row in rows[:5]] == [True] * 4 + [False]


def test_what_computes_something_else_is_not_compared(comfyui: Path) -> None:
    with pytest.raises(InternalError, match="ComfyUI computes something else"):
        list(measure(comfyui))


def test_without_a_comfyui_its_ratio_is_missed_not_left_out(tmp_path: Path) -> None:
    rows = {row.metric: row for row in measure(tmp_path) if row.case == "flux1 float32"}
    assert list(rows) == ["diffusers", "ours", "ours / diffusers", "ours / ComfyUI"]
    assert isnan(rows["ours / ComfyUI"].value)
    assert (rows["ours / ComfyUI"].target, rows["ours / ComfyUI"].ok) == (1.0, False)


def test_a_comfyui_that_does_not_start_is_an_error_with_its_last_words(comfyui: Path) -> None:
    (comfyui / "comfy" / "options.py").write_text("import torch_of_the_moon", encoding="utf-8")
    with pytest.raises(InternalError, match="torch_of_the_moon") as caught:
        list(measure(comfyui))
    assert "--comfyui-python" in str(caught.value)


def test_comfyui_and_its_python_are_found(comfyui: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_comfyui(comfyui) == comfyui
    assert find_comfyui(comfyui / "comfy") is None
    monkeypatch.setenv("COMFYUI_PATH", str(comfyui))
    assert find_comfyui(None) == comfyui
    assert find_python(None, comfyui) == Path(sys.executable)
    own = comfyui / ".venv" / "bin" / "python"
    own.parent.mkdir(parents=True)
    own.touch()
    assert find_python(None, comfyui) == own
    assert find_python(Path("other"), comfyui) == Path("other")


@pytest.mark.parametrize("subject", SUBJECTS, ids=lambda subject: subject.family)
def test_every_subject_is_a_model_of_its_family(subject: Subject) -> None:
    family = next(family for family in FAMILIES if family.name == subject.family)
    module = family.build(subject.config)
    assert all(parameter.device == torch.device("meta") for parameter in module.parameters())
    assert subject.conditioning.keys() | subject.stock.literals.keys() <= family.conditioning
