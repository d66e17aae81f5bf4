"""One step of each model family against ComfyUI's own module, and against diffusers' with torch's attention.

All sides hold the same weights, are asked at the same point and take turns in one run, on one thread of the
CPU; a ratio counts only between outputs that agree.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from itertools import cycle, islice, permutations
from math import nan
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Protocol

import torch
from safetensors.torch import load_file, save_file

from ...protocol.errors import InternalError
from ..models.family import Family
from ..models.loader import load
from ..models.model import Model
from ..models.registry import FAMILIES
from ..rank.allocator import keep_buffers
from .comfyui import Comfyui, find_comfyui, find_python, running
from .row import Row
from .subjects import SUBJECTS, Subject
from .weights import published_shapes, random_weights

PAIRS = 12
TARGET = 1.0
DTYPES = (torch.float32, torch.bfloat16)
#: How far outputs may be apart, relative, before they count as different computations.
AGREE = {torch.float32: 1e-3, torch.bfloat16: 0.1}
CPU = torch.device("cpu")


class Side(Protocol):
    """Whoever computes a step."""

    def step(self) -> float:
        """Take one step; its seconds."""

    def output(self) -> torch.Tensor:
        """What a step gives, in fp32."""


class Ours:
    """A model in this process."""

    def __init__(self, model: Model, inputs: Path) -> None:
        self._model = model
        self._conditioning = load_file(inputs)
        self._x = self._conditioning.pop("x")
        self._timestep = self._conditioning.pop("timestep")

    def step(self) -> float:
        began = perf_counter()
        self._predict()
        return perf_counter() - began

    def output(self) -> torch.Tensor:
        return self._predict().float()

    def _predict(self) -> torch.Tensor:
        return self._model.predict(self._x, self._timestep, self._conditioning)


class Theirs:
    """ComfyUI's module in its process."""

    def __init__(self, comfyui: Comfyui, subject: Subject, dtype: torch.dtype, files: Files) -> None:
        self._comfyui = comfyui
        self._output = files.output
        answer = comfyui.ask(
            "build",
            module=subject.stock.module,
            name=subject.stock.name,
            arguments=subject.stock.arguments,
            literals=subject.stock.literals,
            weights=str(files.weights),
            inputs=str(files.inputs),
            dtype=str(dtype).removeprefix("torch."),
        )
        self.torch = str(answer["torch"])

    def step(self) -> float:
        return float(self._comfyui.ask("step")["seconds"])

    def output(self) -> torch.Tensor:
        self._comfyui.ask("step", output=str(self._output))
        return load_file(self._output)["v"]


class Files:
    """Where one contest keeps its weights and inputs, both in its dtype but for the timestep."""

    def __init__(self, folder: Path) -> None:
        self.weights = folder / "weights.safetensors"
        self.inputs = folder / "inputs.safetensors"
        self.output = folder / "output.safetensors"

    def write(self, subject: Subject, family: Family, dtype: torch.dtype) -> None:
        save_file(dict(random_weights(published_shapes(family, subject.config), dtype)), self.weights)
        generator = torch.Generator().manual_seed(1)
        shapes = {"x": subject.latent} | dict(subject.conditioning)
        tensors = {name: torch.randn(*shape, generator=generator) for name, shape in shapes.items()}
        tensors = {name: tensor.to(dtype) for name, tensor in tensors.items()}
        save_file(tensors | {"timestep": torch.tensor([subject.timestep])}, self.inputs)


def rows(
    comfyui: Path | None = None,
    comfyui_python: Path | None = None,
    *,
    subjects: Sequence[Subject] = SUBJECTS,
    pairs: int = PAIRS,
) -> Iterator[Row]:
    """Milliseconds of each side and the median ratio of `pairs` turns, by family and dtype.

    Without a ComfyUI its ratios are rows without a value, which miss their target.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    # As a rank does.
    keep_buffers()
    try:
        with TemporaryDirectory(prefix="step-") as scratch:
            files = Files(Path(scratch))
            with _stock(comfyui, comfyui_python, Path(scratch) / "comfyui.log") as stock:
                for subject in subjects:
                    for dtype in DTYPES:
                        yield from _contest(subject, dtype, files, stock, pairs)
    finally:
        torch.set_num_threads(threads)


@contextmanager
def _stock(comfyui: Path | None, python: Path | None, log: Path) -> Iterator[Comfyui | None]:
    folder = find_comfyui(comfyui)
    if folder is None:
        yield None
        return
    with running(folder, find_python(python, folder), log) as process:
        yield process


def _contest(
    subject: Subject, dtype: torch.dtype, files: Files, comfyui: Comfyui | None, pairs: int
) -> Iterator[Row]:
    family = next(family for family in FAMILIES if family.name == subject.family)
    files.write(subject, family, dtype)
    ours = load(files.weights, dtype=dtype, device=CPU, config=subject.config)
    sides: dict[str, Side] = {
        "diffusers": Ours(_untouched(ours, family, subject), files.inputs),
        "ours": Ours(ours, files.inputs),
    }
    if comfyui is not None:
        theirs = Theirs(comfyui, subject, dtype, files)
        other = "" if theirs.torch == torch.__version__ else f" (torch {theirs.torch})"
        sides[f"ComfyUI{other}"] = theirs
    _check_agreement({name: side.output() for name, side in sides.items()}, dtype, subject)
    taken = _take_turns(sides, pairs)
    yield from _report(f"{subject.family} {str(dtype).removeprefix('torch.')}", taken)


def _untouched(ours: Model, family: Family, subject: Subject) -> Model:
    """The same weights in diffusers' module as it stands, with torch's own attention."""
    module = family.build(subject.config)
    module.load_state_dict(ours.module.state_dict(), strict=True, assign=True)
    return Model(family, module, ours.dtype, ours.device, ours.header, attention=nullcontext())


def _check_agreement(outputs: Mapping[str, torch.Tensor], dtype: torch.dtype, subject: Subject) -> None:
    ours = outputs["ours"].double()
    for name, output in outputs.items():
        apart = float((output.double() - ours).norm() / ours.norm())
        if not apart <= AGREE[dtype]:
            raise InternalError(
                f"{subject.family} in {dtype}: {name} computes something else than we do (relative distance "
                f"{apart:.2g}); their times mean nothing."
            )


def _take_turns(sides: Mapping[str, Side], pairs: int) -> dict[str, list[float]]:
    """Seconds of each turn; the rounds go through every order, so that each side follows each as often."""
    taken: dict[str, list[float]] = {name: [] for name in sides}
    for order in islice(cycle(permutations(sides)), pairs):
        for name in order:
            taken[name].append(sides[name].step())
    return taken


def _report(case: str, taken: Mapping[str, list[float]]) -> Iterator[Row]:
    for name, seconds in taken.items():
        yield Row("step", case, name, median(seconds) * 1e3, "ms", None, True)
    for name, seconds in taken.items():
        if name != "ours":
            ratio = median(mine / other for mine, other in zip(taken["ours"], seconds, strict=True))
            target = TARGET if name.startswith("ComfyUI") else None
            yield Row("step", case, f"ours / {name}", ratio, "x", target, target is None or ratio <= target)
    if not any(name.startswith("ComfyUI") for name in taken):
        yield Row("step", case, "ours / ComfyUI", nan, "x", TARGET, False)
