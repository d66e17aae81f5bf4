"""Linear layers that keep their weight in few bits."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from .kitchen import Parts, product, wrap
from .layer import Options
from .unpack import unpack

SMOOTHING = "pre_quant_scale"


class QuantLinear(nn.Module):
    """A linear layer whose weight stays as it is stored.

    native: multiply in few bits (comfy-kitchen); else the weight is unpacked at each use. `packed` and the
    parts are buffers outside the state dict. x (...,columns) and the result in the model's dtype.
    change: what is done to the values (out, in) in float32 whenever they are unpacked, in place.
    """

    change: Callable[[torch.Tensor], None] | None

    def __init__(
        self,
        linear: nn.Linear,
        name: str,
        options: Options,
        packed: torch.Tensor,
        parts: Parts,
        *,
        native: bool,
        dtype: torch.dtype,
    ) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.format, self.options, self.native, self.dtype = name, options, native, dtype
        self.bias = linear.bias
        self.change = None
        self.register_buffer("packed", packed, persistent=False)
        self._part_names = tuple(parts)
        for part, tensor in parts.items():
            self.register_buffer(part, tensor, persistent=False)

    @property
    def parts(self) -> dict[str, torch.Tensor]:
        return {name: self.get_buffer(name) for name in self._part_names}

    @property
    def weight(self) -> torch.Tensor:
        """The values (out, in) in the model's dtype, unpacked anew."""
        return self.unpacked(self.dtype)

    def unpacked(self, dtype: torch.dtype) -> torch.Tensor:
        """The values (out, in) in `dtype`, changed if they are to be."""
        if self.change is None:
            return self.stored(dtype)
        found = self.stored(torch.float32).clone()
        self.change(found)
        return found.to(dtype)

    def stored(self, dtype: torch.dtype) -> torch.Tensor:
        """The values (out, in) in `dtype`, as the file has them."""
        found = unpack(self.format, self.options, self.get_buffer("packed"), self.parts, dtype)
        return found[: self.out_features, : self.in_features]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = self.parts
        if SMOOTHING in parts:
            x = x * parts[SMOOTHING].to(x.dtype)
        if not self.native:
            return nn.functional.linear(x, self.unpacked(x.dtype), self.bias)
        shape = (self.out_features, self.in_features)
        weight = wrap(self.format, self.options, self.get_buffer("packed"), parts, shape, x.dtype)
        return product(x, weight, self.bias, self.format, parts)

    def extra_repr(self) -> str:
        return f"{self.in_features}, {self.out_features}, {self.format}, native={self.native}"


class SmoothedLinear(nn.Linear):
    """A plain linear layer whose input is first scaled per column, as its quantisation assumed."""

    def __init__(self, linear: nn.Linear, scale: torch.Tensor) -> None:
        super().__init__(linear.in_features, linear.out_features, linear.bias is not None, device="meta")
        self.weight, self.bias = linear.weight, linear.bias
        self.register_buffer(SMOOTHING, scale, persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x * self.get_buffer(SMOOTHING).to(x.dtype))
