"""What differs between the ComfyUI versions this pack runs in."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any


def known(function: Callable[..., Any], **keywords: Any) -> dict[str, Any]:
    """Return those of `keywords` that `function` takes; older versions lack the cosmetic ones."""
    parameters = inspect.signature(function).parameters
    return {name: value for name, value in keywords.items() if name in parameters}


def current_node() -> str:
    """The id of the node that is executing in this thread, "" outside of one."""
    from comfy_execution.utils import get_executing_context

    context = get_executing_context()
    return "" if context is None else str(context.node_id)
