"""LoRAs beside the weights: what they add to a layer's output as it runs, as ComfyUI's bypass loaders do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from ...protocol.errors import InvalidRequestError, UnsupportedRequestError
from ..models.model import Model
from ..models.plan import Read
from .beside import added, check_shapes, rotated, shifted
from .layout import FileWeight, Layout
from .patch import Patch

ROTATIONS = frozenset({"oft", "boft"})


class Bypasses:
    """The hooks on a model's layers; those of a call take the place of the last call's."""

    def __init__(self, model: Model, layout: Layout) -> None:
        self._model, self._layout = model, layout
        self._patches: list[Patch] = []
        self._handles: list[RemovableHandle] = []

    def use(self, patches: Sequence[Patch]) -> None:
        """Run the layers with `patches` beside them, of each layer in their order.

        Raises UnsupportedRequestError, with nothing set, for a patch of some rows, or a rotation of a layer
        that the module has in parts; InvalidRequestError for one that does not fit.
        """
        if len(patches) == len(self._patches) and all(map(Patch.same_as, patches, self._patches)):
            return
        found = [
            (self._layer(target), Beside(patch, weight, reads, self._layer(target)))
            for patch in patches
            for weight in [self._layout.find(patch.key)]
            for target, reads in _by_target(weight).items()
        ]
        for handle in self._handles:
            handle.remove()
        self._handles = [handle for layer, beside in found for handle in beside.hook(layer)]
        self._patches = list(patches)

    def _layer(self, target: str) -> nn.Module:
        owner, _, name = target.rpartition(".")
        if name != "weight":
            raise UnsupportedRequestError(
                f"{target!r} is no layer's weight: a LoRA cannot run beside it.",
                hint="Load this LoRA with the ordinary loader.",
            )
        return self._model.module.get_submodule(owner)


class Beside:
    """One patch on one layer, which has all output rows of the file's weight, or the part `reads`."""

    def __init__(self, patch: Patch, weight: FileWeight, reads: Sequence[Read], layer: nn.Module) -> None:
        _check(patch, weight, reads)
        check_shapes(patch, weight.shape)
        self._patch, self._shape, self._reads = patch, weight.shape, reads
        self._whole = len(reads) == 1 and reads[0].rows == weight.shape[0]
        own = getattr(layer, "weight", None)
        dtype = own.dtype if isinstance(own, torch.Tensor) and isinstance(layer, nn.Linear) else None
        device = next(layer.parameters(), next(layer.buffers(), torch.empty(0))).device
        self._tensors = {
            name: tensor.to(device, dtype if tensor.is_floating_point() else None)
            for name, tensor in patch.tensors.items()
        }
        self._input = torch.empty(0)

    def hook(self, layer: nn.Module) -> list[RemovableHandle]:
        if self._patch.kind != "glora":
            return [layer.register_forward_hook(self._after)]
        return [layer.register_forward_pre_hook(self._before), layer.register_forward_hook(self._after)]

    def _before(self, layer: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        self._input = inputs[0]
        return (self._input + shifted(layer, self._input, self._cast(self._input), self._patch), *inputs[1:])

    def _after(self, layer: nn.Module, inputs: tuple[Any, ...], output: torch.Tensor) -> torch.Tensor:
        if self._patch.kind in ROTATIONS:
            return rotated(layer, output, self._cast(output), self._patch)
        x = self._input if self._patch.kind == "glora" else inputs[0]
        self._input = torch.empty(0)
        found = added(layer, x, self._cast(x), self._patch, self._shape)
        return output + (found if self._whole else self._own(layer, found))

    def _cast(self, like: torch.Tensor) -> dict[str, torch.Tensor]:
        return {name: tensor.to(like.dtype) for name, tensor in self._tensors.items()}

    def _own(self, layer: nn.Module, found: torch.Tensor) -> torch.Tensor:
        dim = -1 if not isinstance(layer, nn.Conv1d | nn.Conv2d | nn.Conv3d) else 1
        return torch.cat([found.narrow(dim, read.first, read.rows) for read in self._reads], dim)


def _by_target(weight: FileWeight) -> dict[str, list[Read]]:
    targets: dict[str, list[Read]] = {}
    for read in sorted(weight.reads, key=lambda read: read.target_first):
        targets.setdefault(read.target, []).append(read)
    return targets


def _check(patch: Patch, weight: FileWeight, reads: Sequence[Read]) -> None:
    hint = "Load this LoRA with the ordinary loader."
    if patch.offset is not None or patch.strength_model != 1.0:
        raise UnsupportedRequestError(
            f"Weight {patch.key!r}: a LoRA for some of its rows, or with a strength for the model, cannot run "
            f"beside it.",
            hint=hint,
        )
    if patch.kind in ROTATIONS and (len(reads) > 1 or reads[0].rows != weight.shape[0]):
        raise UnsupportedRequestError(
            f"Weight {patch.key!r}: a rotation cannot run beside a layer that is kept in parts.", hint=hint
        )
    if len(weight.shape) < 2:
        raise InvalidRequestError(f"Weight {patch.key!r} is no layer's matrix.", hint=hint)
