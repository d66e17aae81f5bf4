"""Callables of stock nodes that are known well enough to be run elsewhere as data.

Known is known strictly: by the file, the qualified name, the names in the closure, and the source of the
function and of its helpers. Anything else stays ComfyUI's to run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from ..protocol.messages.base import Record
from .fingerprint import fingerprint

Values = Mapping[str, Any]


def _none(values: Values, shape: torch.Size) -> str:
    """The limit of what has none."""
    return ""


@dataclass(frozen=True)
class Known:
    """One callable.

    place: the option of a MODEL it is kept in. node, file, function: its class, the module of that, and its
    qualified name below the class. closure: the names in its closure, sorted. digests: of its source with
    that of `helpers`, in the versions of ComfyUI that compute the same. change: what it is as data, given its
    closure; None where that takes more. limit: why it must run in ComfyUI after all, by the latent's shape.
    """

    place: str
    node: str
    file: str
    function: str
    closure: tuple[str, ...]
    digests: tuple[str, ...]
    change: Callable[[Values], Record] | None
    helpers: tuple[str, ...] = ()
    limit: Callable[[Values, torch.Size], str] = _none

    def is_named(self, function: Any, place: str) -> bool:
        module = getattr(function, "__module__", None) or ""
        name = getattr(function, "__qualname__", "")
        return self.place == place and module.endswith(self.file) and name == f"{self.node}.{self.function}"

    def is_same(self, function: Any) -> bool:
        """Whether a function of that name is the one that is known."""
        if tuple(sorted(function.__code__.co_freevars)) != self.closure:
            return False
        helpers = [function.__globals__.get(name) for name in self.helpers]
        return fingerprint(function, *helpers) in self.digests


@dataclass(frozen=True, eq=False)
class Found:
    """A callable that is known, with its closure."""

    known: Known
    function: Any

    @property
    def values(self) -> Values:
        return {name: cell.cell_contents for name, cell in self.cells.items()}

    @property
    def cells(self) -> dict[str, Any]:
        names = self.function.__code__.co_freevars
        return dict(zip(names, self.function.__closure__ or (), strict=True))


def find(table: Iterable[Known], function: Any, place: str) -> Found | None:
    """What `function`, kept in `place`, is; None when it is none of `table`."""
    named = [known for known in table if known.is_named(function, place)]
    return next((Found(known, function) for known in named if known.is_same(function)), None)
