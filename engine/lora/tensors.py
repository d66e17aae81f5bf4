"""The tensors of one LoRA file under the names ComfyUI looks for, read one by one as they are asked for."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from ...protocol.errors import CheckpointError
from ..models.header import Header, TensorInfo
from ..models.reader import Reader

FIRST_WAN = "lora_unet__blocks_0_cross_attn_k.lora_down.weight"
BFL = ("img_in.lora_A.weight", "single_blocks.0.norm.key_norm.scale")
USO = ("single_blocks.37.processor.qkv_lora.up.weight", "double_blocks.18.processor.qkv_lora2.up.weight")
USO_PARTS = (
    (".down.weight", ".lora_down.weight"),
    (".up.weight", ".lora_up.weight"),
    (".qkv_lora2.", ".txt_attn.qkv."),
    (".qkv_lora1.", ".img_attn.qkv."),
    (".proj_lora1.", ".img_attn.proj."),
    (".proj_lora2.", ".txt_attn.proj."),
    (".qkv_lora.", ".linear1_qkv."),
    (".proj_lora.", ".linear2."),
    (".processor.", "."),
)
BFL_PARTS = ((".lora_B.bias", ".diff_b"), ("_norm.scale", "_norm.set_weight"))
RESHAPED = "diffusion_model.img_in.reshape_weight"


def renamed(keys: Mapping[str, TensorInfo]) -> dict[str, str]:
    """The name ComfyUI knows -> the name in the file, for the three makers who have names of their own."""
    if all(key in keys for key in BFL):
        return {f"diffusion_model.{_replaced(key, BFL_PARTS)}": key for key in keys}
    if all(key in keys for key in USO):
        return {f"diffusion_model.{_replaced(key, USO_PARTS)}": key for key in keys}
    if FIRST_WAN in keys:
        return {key.replace("lora_unet__", "lora_unet_", 1): key for key in keys}
    return {key: key for key in keys}


def _replaced(key: str, parts: tuple[tuple[str, str], ...]) -> str:
    for before, after in parts:
        key = key.replace(before, after)
    return key


class LoraTensors:
    """Tensors of a file by the names of `renamed`; remembers which were taken."""

    def __init__(self, header: Header, reader: Reader) -> None:
        self._header, self._reader = header, reader
        self._names = renamed(header.tensors)
        self._taken: set[str] = set()

    def __contains__(self, name: str) -> bool:
        return name in self._names or (name == RESHAPED and self._widened() is not None)

    def take(self, name: str) -> torch.Tensor:
        """The tensor `name`, in the file's dtype. Raises CheckpointError when the file lacks it."""
        if name == RESHAPED and name not in self._names and (shape := self._widened()) is not None:
            return torch.tensor(shape)
        if name not in self._names:
            raise CheckpointError(
                f"{self._header.path}: this LoRA lacks its tensor {name!r}.", hint="The file is incomplete."
            )
        self._taken.add(self._names[name])
        info = self._header.tensors[self._names[name]]
        tensor = self._reader.tensor(info)
        return tensor.reshape(-1).view(torch.int64) if info.dtype == "I64" else tensor

    def left(self) -> tuple[str, ...]:
        """Names, as in the file, of the tensors nobody took."""
        return tuple(sorted(self._header.tensors.keys() - self._taken))

    def _widened(self) -> list[int] | None:
        """The shape that a control LoRA by Black Forest Labs gives the input layer."""
        tensors = self._header.tensors
        if any(key not in tensors for key in BFL):
            return None
        return [tensors["img_in.lora_B.weight"].shape[0], tensors["img_in.lora_A.weight"].shape[1]]
