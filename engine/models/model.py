"""A loaded model: weights, and one question it answers."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import nn

from ...protocol.errors import UnsupportedRequestError
from ..attention.seam import Attention
from .family import Family, Ragged
from .header import Header


class Model:
    """A transformer of `family` on one device; `module` and `attention` may be altered from outside.

    `low_bit_layers` counts the quantised layers of its file by the form they have in memory.
    """

    def __init__(
        self,
        adapter: Family,
        module: nn.Module,
        dtype: torch.dtype,
        device: torch.device,
        header: Header,
        low_bit_layers: Mapping[str, int] | None = None,
        attention: AbstractContextManager[object] | None = None,
    ) -> None:
        self.adapter = adapter
        self.module = module
        self.dtype = dtype
        self.device = device
        self.header = header
        self.low_bit_layers: dict[str, int] = dict(low_bit_layers or {})
        self.attention = attention or Attention()

    @property
    def family(self) -> str:
        return self.adapter.name

    @property
    def ragged(self) -> frozenset[str]:
        """Conditioning that may differ in length between the rows of one call; most families have none."""
        return self.adapter.ragged if isinstance(self.adapter, Ragged) else frozenset()

    @property
    def nbytes(self) -> int:
        """Bytes of all parameters and buffers."""
        tensors = (*self.module.parameters(), *self.module.buffers())
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors)

    @torch.no_grad()
    def predict(
        self, x: torch.Tensor, timestep: torch.Tensor, conditioning: Mapping[str, Any]
    ) -> torch.Tensor:
        """What the raw network says at `x`: v in the model's dtype, so that x0 = x - sigma * v.float().

        x (B,C,[T,]H,W) any float dtype, with concatenated conditioning channels; timestep (B,) as ComfyUI's
        sampling object gives it, or (B,...) per frame or token, kept in fp32; conditioning as ComfyUI passes
        it, None meaning absent.
        Raises UnsupportedRequestError for a key this family does not honour, InvalidRequestError for misfits.
        """
        given = {key: self._cast(value) for key, value in conditioning.items() if value is not None}
        for key in sorted(given.keys() - self.adapter.conditioning):
            raise UnsupportedRequestError(
                f"{self.adapter.title} does not know the conditioning {key!r}.",
                hint="Remove the node that sets it, or sample with ComfyUI's own loader.",
            )
        exact = timestep.to(device=self.device, dtype=torch.float32)
        with self.attention:
            return self.adapter.predict(self.module, self._cast(x), exact, given)

    def _cast(self, value: Any) -> Any:
        """Tensors to the device, those of floats to the dtype too, within lists and tables as well."""
        if isinstance(value, torch.Tensor):
            return value.to(self.device, self.dtype if value.is_floating_point() else None)
        if isinstance(value, list | tuple):
            return [self._cast(item) for item in value]
        if isinstance(value, Mapping):
            return {key: self._cast(item) for key, item in value.items()}
        return value
