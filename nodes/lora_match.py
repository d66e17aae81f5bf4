"""Which keys of a LoRA file name weights of a MODEL, told from the file's header by ComfyUI's own parser."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import comfy.lora
import comfy.lora_convert
import torch

from ..engine.lora.names import of_text_encoder
from ..engine.models.header import Header
from .skeleton import TORCH_DTYPES


@dataclass(frozen=True)
class Match:
    """Weights of the model that a file changes, and its keys: how many were used, and which name nothing."""

    weights: frozenset[str]
    used: int
    unmatched: tuple[str, ...]


class Consulted(dict[str, Any]):
    """A file's tensors, remembering which were looked at."""

    def __init__(self, tensors: dict[str, Any]) -> None:
        super().__init__(tensors)
        self.seen: set[str] = set()

    def __getitem__(self, key: str) -> Any:
        self.seen.add(key)
        return super().__getitem__(key)

    def get(self, key: str, default: Any = None) -> Any:
        self.seen |= {key} & self.keys()
        return super().get(key, default)


def match(model: Any, header: Header) -> Match:
    """How ComfyUI would match the file behind `header` to `model`, a BaseModel."""
    file = Consulted(comfy.lora_convert.convert_lora(dict(_stand_ins(header))))
    patches = comfy.lora.load_lora(file, comfy.lora.model_lora_keys_unet(model, {}), log_missing=False)
    names = model.state_dict().keys()
    targets = (key if isinstance(key, str) else key[0] for key in patches)
    unmatched = sorted(file.keys() - file.seen)
    ours = tuple(key for key in unmatched if not of_text_encoder(key))
    return Match(frozenset(target for target in targets if target in names), len(file.seen), ours)


def _stand_ins(header: Header) -> Iterator[tuple[str, torch.Tensor]]:
    """The file's tensors by shape alone. The parser looks at single numbers (alpha), which here are all 1."""
    for name, info in header.tensors.items():
        if all(length == 1 for length in info.shape):
            yield name, torch.ones(info.shape)
        else:
            dtype = TORCH_DTYPES.get(info.dtype, torch.float32)
            yield name, torch.empty(info.shape, dtype=dtype, device="meta")
