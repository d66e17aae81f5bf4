"""A LoRA's strength changed on a model of a gigabyte, against copying the bytes it rewrites.

Both run on one thread, in turns, in the processor time of that thread, which other programs hardly lengthen.
Compiled blocks count how often they are compiled anew.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from time import thread_time
from typing import Any

import torch

from ..lora.layout import layout_of
from ..lora.overlay import Overlay
from ..lora.patch import Patch
from ..lora.places import rows_of
from ..models.flux1 import Flux1
from ..models.loader import load
from ..models.model import Model
from .load import check_room
from .row import Row
from .weights import file_size, published_shapes, write_file

ROUNDS = 7
TARGET = 1.3
RANK = 16
DTYPES = (torch.float32, torch.bfloat16)
#: FLUX.1 of two thirds of its width with a few of its blocks: 1.1 GB in bfloat16, 2.2 GB in float32.
CONFIG: Mapping[str, Any] = {
    "in_channels": 64,
    "out_channels": 64,
    "num_layers": 2,
    "num_single_layers": 3,
    "attention_head_dim": 128,
    "num_attention_heads": 16,
    "joint_attention_dim": 4096,
    "pooled_projection_dim": 768,
    "guidance_embeds": True,
    "axes_dims_rope": (16, 56, 56),
}


def rows(
    folder: Path | None = None, *, config: Mapping[str, Any] = CONFIG, rounds: int = ROUNDS
) -> Iterator[Row]:
    """Seconds of both, their median ratio, and compilations, for each dtype.

    Raises OutOfMemoryError when `folder` or the memory has no room.
    """
    shapes = published_shapes(Flux1(), config)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with tempfile.TemporaryDirectory(prefix="lora-", dir=folder) as scratch:
            path = Path(scratch) / "flux1.safetensors"
            check_room(path.parent, file_size(shapes), file_size(shapes) * 6)
            write_file(path, shapes)
            for dtype in DTYPES:
                model = load(path, dtype=dtype, device=torch.device("cpu"))
                yield from _strength(model, rounds)
                yield _compilations(model)
    finally:
        torch.set_num_threads(threads)


def _strength(model: Model, rounds: int) -> Iterator[Row]:
    overlay, patches = Overlay(model), _patches(model)
    touched = overlay.use(patches)
    copies = _copies(model, patches)
    floor, ours = [], []
    for turn in range(rounds):
        floor.append(_seconds_of_copy(copies))
        changed = [replace(patch, strength=0.9 if turn % 2 == 0 else 0.8) for patch in patches]
        began = thread_time()
        overlay.use(changed)
        ours.append(thread_time() - began)
    overlay.use(())
    case = f"{touched.bytes / 1e9:.2f} GB {_name(model.dtype)}"
    ratio = median(mine / other for mine, other in zip(ours, floor, strict=True))
    yield Row("lora", case, "strength change", median(ours), "s", None, True)
    yield Row("lora", case, "memcpy", median(floor), "s", None, True)
    yield Row("lora", case, "change / memcpy", ratio, "x", TARGET, ratio <= TARGET)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _patches(model: Model) -> list[Patch]:
    """A LoRA of rank 16 for every matrix of the model."""
    generator = torch.Generator().manual_seed(0)
    return [
        Patch(
            key,
            "lora",
            {
                "up": torch.randn(weight.shape[0], RANK, generator=generator) * 0.01,
                "down": torch.randn(RANK, weight.shape[1], generator=generator) * 0.01,
            },
            0.8,
        )
        for key, weight in layout_of(model).weights.items()
        if len(weight.shape) == 2
    ]


Copies = Sequence[tuple[torch.Tensor, torch.Tensor]]


def _copies(model: Model, patches: Sequence[Patch]) -> Copies:
    """For everything the patches rewrite, memory of the same size to copy it to."""
    weights = layout_of(model).weights
    sources = [rows_of(model.module, read) for patch in patches for read in weights[patch.key].reads]
    return [(torch.zeros_like(source), source) for source in sources]


def _seconds_of_copy(copies: Copies) -> float:
    began = thread_time()
    for target, source in copies:
        target.copy_(source)
    return thread_time() - began


def _compilations(model: Model) -> Row:
    """How often the model's blocks are compiled anew while LoRAs come, change and go."""
    counted = 0

    def backend(graph: torch.fx.GraphModule, _inputs: Sequence[torch.Tensor]) -> torch.fx.GraphModule:
        nonlocal counted
        counted += 1
        return graph

    overlay, patches = Overlay(model), _patches(model)
    for block in (*model.module.transformer_blocks, *model.module.single_transformer_blocks):  # type: ignore[misc]
        block.compile(backend=backend)
    _predict(model)
    first = counted
    for strength in (0.8, 0.9, None):
        overlay.use([replace(patch, strength=strength) for patch in patches] if strength else ())
        _predict(model)
    anew = counted - first
    case = f"{_name(model.dtype)}, {first} graphs"
    return Row("lora", case, "compiled anew", anew, "", 0, anew == 0 and first > 0)


def _predict(model: Model) -> torch.Tensor:
    given = {"context": torch.ones(1, 8, 4096), "y": torch.ones(1, 768), "guidance": torch.ones(1)}
    return model.predict(torch.ones(1, 16, 8, 8), torch.tensor([0.5]), given)
