"""The setting "Use Outboard for every diffusion model": prompts get our loader where it can serve."""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path
from typing import Any

import folder_paths
from comfy.cli_args import args

from ..engine.models.header import read_header
from ..engine.models.registry import detect
from ..protocol.errors import OutboardError
from . import model_file
from .compat import reads_quantised
from .weight_dtype import WEIGHT_DTYPES, has_layouts

SETTING = "Outboard.UseForAll"
STOCK, OURS = "UNETLoader", "OutboardUNETLoader"


def use_outboard(request: dict[str, Any]) -> dict[str, Any]:
    """A prompt handler: `request` is what was posted to /prompt, returned with its loaders exchanged."""
    prompt = request.get("prompt")
    if isinstance(prompt, dict) and enabled():
        for node in prompt.values():
            if _exchangeable(node):
                node["class_type"] = OURS
    return request


def enabled() -> bool:
    """What the user's settings say; with several users ComfyUI does not tell whose prompt it is, so no."""
    if args.multi_user:
        return False
    path = Path(folder_paths.get_user_directory()) / "default" / "comfy.settings.json"
    try:
        settings = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(settings, dict) and settings.get(SETTING) is True


def _exchangeable(node: Any) -> bool:
    if not isinstance(node, dict) or node.get("class_type") != STOCK:
        return False
    inputs = node.get("inputs", {})
    name = inputs.get("unet_name")
    return isinstance(name, str) and inputs.get("weight_dtype") in WEIGHT_DTYPES and _supported(name)


def _supported(name: str) -> bool:
    path = folder_paths.get_full_path(model_file.FOLDER, name)
    return path is not None and _detected(path, Path(path).stat().st_mtime_ns)


@lru_cache(maxsize=256)
def _detected(path: str, modified: int) -> bool:
    try:
        detected = detect(read_header(Path(path)))
    except OutboardError:
        return False
    return reads_quantised() or not has_layouts(detected)
