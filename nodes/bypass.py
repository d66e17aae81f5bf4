"""LoRAs in bypass mode: what LoraLoaderBypass would inject into the layers, taken out of the injection."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import comfy.weight_adapter

from .weight_patches import WEIGHT, refuse


def adapters_of(patcher: Any) -> Iterator[tuple[str, Any, float]]:
    """Each bypassed adapter: the weight's key, ComfyUI's adapter and its strength.

    Raises UnsupportedRequestError for injections that are none.
    """
    for name, injections in patcher.injections.items():
        for injection in injections:
            manager = _manager(injection)
            if manager is None:
                refuse(f"This MODEL has injections under {name!r}", "a custom node")
            for module, (adapter, strength) in manager.adapters.items():
                yield f"{module}{WEIGHT}", adapter, strength


def identity(patcher: Any) -> tuple[int, ...]:
    """What tells two states of a patcher's injections apart, while it lives."""
    return tuple(id(injection) for injections in patcher.injections.values() for injection in injections)


def _manager(injection: Any) -> Any:
    """The manager that made `injection`, which is all its function closes over; None for another's."""
    kind = getattr(comfy.weight_adapter, "BypassInjectionManager", None)
    if kind is None or not inspect.isfunction(injection.inject):
        return None
    manager = inspect.getclosurevars(injection.inject).nonlocals.get("self")
    return manager if isinstance(manager, kind) else None
