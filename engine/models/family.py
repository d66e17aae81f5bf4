"""What one model family must say about itself; each family is one file with one object of this shape."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import torch
from torch import nn

from .contents import Contents
from .keymap import Copy

Config = Mapping[str, Any]
Shapes = Mapping[str, Sequence[int]]
Conditioning = Mapping[str, Any]


class Family(Protocol):
    """Recognises a file, builds its module, ties the keys and translates the call.

    name            stable identifier, e.g. "flux1"
    title           name for people, e.g. "FLUX.1"
    transformer     name of the diffusers class that holds the weights
    conditioning    keys of a request that `predict` honours; any other is refused before the call
    unread          keys of published files that hold no weight the network uses: a marker, a forgotten norm
    """

    @property
    def name(self) -> str: ...

    @property
    def title(self) -> str: ...

    @property
    def transformer(self) -> str: ...

    @property
    def conditioning(self) -> frozenset[str]: ...

    @property
    def unread(self) -> frozenset[str]: ...

    def canonical(self, key: str) -> str:
        """The one spelling of `key` (without prefix) that `key_map` uses."""

    def matches(self, contents: Contents) -> bool:
        """Whether the file holds this family."""

    def config(self, contents: Contents) -> Config:
        """Arguments of the module, inferred from shapes. Raises CheckpointError or UnsupportedModelError."""

    def build(self, config: Config) -> nn.Module:
        """The module on the meta device."""

    def key_map(self, shapes: Shapes) -> Iterable[Copy]:
        """Ties each tensor of a module (its state dict's names and shapes) to the file's tensors."""

    def predict(
        self, module: nn.Module, x: torch.Tensor, timestep: torch.Tensor, given: Conditioning
    ) -> torch.Tensor:
        """One forward, giving v; x (B,C,H,W) and floats of `given` in model dtype, timestep (B,) fp32."""


@runtime_checkable
class Ragged(Protocol):
    """A family that computes rows with texts of different lengths in one call, each as it would alone.

    ragged          conditioning that may differ in length from row to row; it then comes as a list of rows
    """

    @property
    def ragged(self) -> frozenset[str]: ...
