"""Taking a request back in the middle of a forward, so that a long step need not end first."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def interruptible(module: nn.Module, check: Callable[[], None]) -> Iterator[None]:
    """Within, `check` runs before each block of `module`, and whatever it raises ends the forward.

    A block is an item of a list of modules right below `module`. For a rank on its own: ranks that compute
    together stop together, which they can agree on between forwards only.
    """
    lists = (part for part in module.children() if isinstance(part, nn.ModuleList))
    hooks = [block.register_forward_pre_hook(lambda *_: check()) for part in lists for block in part]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
