"""Which patches a diffusion model of this ComfyUI never looks at: stock ComfyUI ignores those too.

Versions differ in what a family reads, and no list says so; the text of its classes does.
"""

from __future__ import annotations

import inspect
import sys
from functools import lru_cache
from typing import Any


class Reader:
    """Whether a diffusion model reads the patches of a name. Holds its classes' text, not the model."""

    def __init__(self, diffusion_model: Any) -> None:
        kinds: set[Any] = {kind for part in diffusion_model.modules() for kind in type(part).__mro__}
        ours = [kind for kind in kinds if kind.__module__.startswith("comfy.")]
        root: Any = type(diffusion_model)
        self._texts = [_module_of(root), *map(_class_of, ours)]

    def __call__(self, name: str) -> bool:
        """True when any of them names it; a text that was not found may name anything."""
        return any(not text or f'"{name}"' in text or f"'{name}'" in text for text in self._texts)


@lru_cache(maxsize=512)
def _class_of(kind: Any) -> str:
    return _text(kind)


@lru_cache(maxsize=64)
def _module_of(kind: Any) -> str:
    return _text(sys.modules[kind.__module__])


def _text(where: Any) -> str:
    try:
        return inspect.getsource(where)
    except (OSError, TypeError):
        return ""
