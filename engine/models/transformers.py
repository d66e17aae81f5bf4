"""The seam to diffusers: its transformer classes by name, built without weights or hub access."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

import torch
from torch import nn

from ...protocol.errors import CheckpointError, UnsupportedModelError


def build(class_name: str, config: Mapping[str, Any]) -> nn.Module:
    """`class_name` of diffusers, with `config` as arguments, on the meta device, in eval mode."""
    cls = getattr(import_module("diffusers"), class_name, None)
    if cls is None:
        raise UnsupportedModelError(
            f"The installed diffusers has no {class_name}.",
            hint="Upgrade diffusers in the engine's environment.",
        )
    try:
        with torch.device("meta"):
            module = cls(**config)
    except (TypeError, ValueError, ZeroDivisionError, RuntimeError) as error:
        raise CheckpointError(f"{class_name} cannot be built from {dict(config)}: {error}") from error
    assert isinstance(module, nn.Module)
    return module.eval().requires_grad_(False)
