"""ComfyUI-Outboard: a fast diffusion engine on the outside of ComfyUI."""

from __future__ import annotations

from typing import Any

WEB_DIRECTORY = "./web"


async def comfy_entrypoint() -> Any:
    """Hand ComfyUI the node pack; nothing is imported or started before ComfyUI asks."""
    from .nodes.extension import OutboardExtension

    return OutboardExtension()
