"""Other inputs for a part of a network than its parent hands it, for the length of one call."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

Inputs = tuple[Any, ...]


@contextmanager
def changed_inputs(part: nn.Module, change: Callable[[Inputs], Inputs]) -> Iterator[None]:
    """Within, `part` is called with `change(positional inputs)`."""
    handle = part.register_forward_pre_hook(lambda _, inputs: change(inputs))
    try:
        yield
    finally:
        handle.remove()


@contextmanager
def changed_output(part: nn.Module, change: Callable[[Any], Any]) -> Iterator[None]:
    """Within, `part` answers `change(output)`."""
    handle = part.register_forward_hook(lambda _, _inputs, output: change(output))
    try:
        yield
    finally:
        handle.remove()
