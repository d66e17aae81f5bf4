"""What an adapter of each kind adds to a layer's output, or turns it to, in the layer's dtype."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from .change import butterfly, half, misfit, rotations, scale_of
from .patch import Patch

Tensors = Mapping[str, torch.Tensor]
CONVOLUTIONS: Mapping[type[nn.Module], Callable[..., torch.Tensor]] = {
    nn.Conv1d: functional.conv1d,
    nn.Conv2d: functional.conv2d,
    nn.Conv3d: functional.conv3d,
}


def check_shapes(patch: Patch, shape: tuple[int, ...]) -> None:
    """Raises InvalidRequestError unless the adapter is one for a weight of `shape`."""
    rows, columns = shape[0], torch.Size(shape[1:]).numel()
    if _extent(patch) not in {(rows, columns), (rows, None)}:
        raise misfit(patch, torch.empty(shape, device="meta"))


def _extent(patch: Patch) -> tuple[int, int | None]:
    """Output rows and input columns that the adapter is for; None where its tensors do not tell."""
    tensors = {name: tensor for name, tensor in patch.tensors.items() if name != "reshape"}
    if patch.kind == "lora":
        columns = tensors["down"][0].numel()
        return len(tensors["up"]), columns * (tensors["mid"][0, 0].numel() if "mid" in tensors else 1)
    if patch.kind == "loha":
        if "t1" in tensors:
            core = tensors["t1"][0, 0].numel()
            return tensors["w1_a"].shape[1], tensors["w1_b"].shape[1] * core
        return len(tensors["w1_a"]), tensors["w1_b"].shape[1]
    if patch.kind == "lokr":
        return _kronecker_rows(tensors), None
    blocks = tensors["blocks"]
    return blocks.shape[-3] * blocks.shape[-1], None


def _kronecker_rows(tensors: Tensors) -> int:
    left = tensors["w1" if "w1" in tensors else "w1_a"].shape[0]
    if "w2" in tensors:
        return left * tensors["w2"].shape[0]
    return left * tensors["w2_a"].shape[1 if "t2" in tensors else 0]


def added(
    layer: nn.Module, x: torch.Tensor, tensors: Tensors, patch: Patch, shape: tuple[int, ...]
) -> torch.Tensor:
    """What goes to the output for input `x`: all rows of a weight of `shape`."""
    scale = scale_of(patch, torch.empty(shape, device="meta")) * patch.strength
    return ADDED[patch.kind](_Operator(layer, shape), x, tensors, patch) * scale


def rotated(layer: nn.Module, y: torch.Tensor, tensors: Tensors, patch: Patch) -> torch.Tensor:
    """The output turned by a BOFT; in float32, which ComfyUI's needs to be to work at all."""
    dim = 1 if _Operator(layer, ()).dims else -1
    turns = rotations(tensors["blocks"].float(), patch.alpha or 0.0)
    found = butterfly(y.transpose(dim, -1).float(), turns, patch.strength)
    if "rescale" in tensors:
        found = found * tensors["rescale"].transpose(0, -1)
    return found.to(y.dtype).transpose(dim, -1)


class _Operator:
    """A layer's product with other weights: of a linear layer, or of a convolution in its own steps."""

    def __init__(self, layer: nn.Module, shape: tuple[int, ...]) -> None:
        kind = next((kind for kind in CONVOLUTIONS if isinstance(layer, kind)), None)
        self._function = functional.linear if kind is None else CONVOLUTIONS[kind]
        convolution: Any = layer
        self.dims = 0 if kind is None else len(convolution.kernel_size)
        self.kernel = shape[1:] if self.dims else ()
        names = ("stride", "padding", "dilation", "groups") if self.dims else ()
        self._steps = {name: getattr(convolution, name) for name in names}

    def own(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """With the layer's own steps; a matrix stands for a kernel of the layer's size."""
        if self.dims and weight.ndim == 2:
            weight = weight.reshape(len(weight), *self.kernel)
        return self._function(x, weight, **self._steps)

    def one(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """Point by point."""
        if weight.ndim == 2:
            weight = weight.reshape(*weight.shape, *[1] * self.dims)
        return self._function(x, weight)


def _lora(run: _Operator, x: torch.Tensor, tensors: Tensors, _patch: Patch) -> torch.Tensor:
    if "mid" in tensors:
        return run.one(run.own(run.one(x, tensors["down"]), tensors["mid"]), tensors["up"])
    return run.one(run.own(x, tensors["down"]), tensors["up"])


def _loha(run: _Operator, x: torch.Tensor, tensors: Tensors, _patch: Patch) -> torch.Tensor:
    return run.own(x, half(tensors, "w1", "t1") * half(tensors, "w2", "t2"))


def _lokr(run: _Operator, x: torch.Tensor, tensors: Tensors, patch: Patch) -> torch.Tensor:
    """The right factor on groups of the input, then the left one across the groups."""
    if run.dims:
        raise misfit(patch, x)
    left = half(tensors, "w1")
    groups = x.reshape(*x.shape[:-1], left.shape[1], -1)
    if "w2" in tensors:
        inner = functional.linear(groups, tensors["w2"])
    else:
        inner = functional.linear(functional.linear(groups, tensors["w2_b"]), tensors["w2_a"])
    return functional.linear(inner.transpose(-1, -2), left).transpose(-1, -2).flatten(-2)


ADDED: Mapping[str, Callable[[_Operator, torch.Tensor, Tensors, Patch], torch.Tensor]] = {
    "lora": _lora,
    "loha": _loha,
    "lokr": _lokr,
}
