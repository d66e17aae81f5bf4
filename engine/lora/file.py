"""A LoRA file read for one model: what it changes, and what of it found no place."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from ...protocol.errors import CheckpointError
from ..models.contents import Contents
from ..models.header import Header, read_header
from ..models.lookalikes import look
from ..models.model import Model
from ..models.reader import Reader
from ..models.registry import Detected
from .collect import collect
from .layout import Layout, layout_of
from .names import lora_names
from .patch import Patch
from .tensors import LoraTensors

SHOWN = 5
ADAPTER = re.compile(
    r"(\.lora_([AB]|up|down)\b|lora\.(up|down)\.weight$|\.lora_linear_layer\.|\.hada_w|\.lokr_w|\.oft_blocks$"
    r"|\.a1\.weight$|\.diff(_b)?$|\.w_norm$|\.set_weight$|_lora\d?\.(up|down)\.weight$)"
)


@dataclass(frozen=True)
class LoraContents:
    """The patches of a file for one model, the number of weights they change, and the keys left over."""

    patches: tuple[Patch, ...]
    matched: int
    unmatched: tuple[str, ...]

    def at(self, strength: float) -> list[Patch]:
        """The patches at another strength."""
        return [replace(patch, strength=strength) for patch in self.patches]


def read_lora(path: Path, model: Model | Detected) -> LoraContents:
    """Read the LoRA file `path` as ComfyUI's loader does for this model, its patches at strength 1.

    Raises CheckpointError for a file that is no LoRA, or of which nothing belongs to the model; keys of which
    only some belong to it are reported in `unmatched`, as in ComfyUI's log.
    """
    header = read_header(path)
    if not any(ADAPTER.search(key) for key in header.tensors):
        raise _no_lora(header)
    layout = layout_of(model)
    with path.open("rb", buffering=0) as file:
        tensors = LoraTensors(header, Reader(file, header, torch.device("cpu"), None, 1))
        patches = tuple(collect(lora_names(layout), tensors))
    if not patches:
        raise _no_match(header, layout)
    return LoraContents(patches, len({patch.key for patch in patches}), tensors.left())


def _no_lora(header: Header) -> CheckpointError:
    title = look(Contents(header.path, header.tensors))
    what = f"it looks like {title}" if title else f"its keys are like {_some(header)}"
    return CheckpointError(
        f"{header.path}: is no LoRA; {what}.", hint="Choose a file from the folder of LoRAs, in safetensors."
    )


def _no_match(header: Header, layout: Layout) -> CheckpointError:
    return CheckpointError(
        f"{header.path}: none of its {len(header.tensors)} keys belongs to {layout.family.title}: "
        f"{_some(header)}.",
        hint="The LoRA was made for another model, or has names that ComfyUI does not know for this one.",
    )


def _some(header: Header) -> str:
    keys = sorted(header.tensors)
    more = f" and {len(keys) - SHOWN} more" if len(keys) > SHOWN else ""
    return ", ".join(keys[:SHOWN]) + more
