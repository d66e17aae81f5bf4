"""The pack as ComfyUI sees it."""

from __future__ import annotations

import folder_paths
from comfy_api.latest import ComfyExtension, io

from ..engine.demo.assets import MODEL_ROOT
from . import routes
from .cache_node import OutboardCacheSettings
from .demo_nodes import OutboardDigitDecode, OutboardDigitPrompt
from .engine_node import OutboardEngine, OutboardSettings
from .ksampler import OutboardKSampler
from .loader import OutboardUNETLoader
from .lora_loader import OutboardLoraLoader
from .model_file import FOLDER
from .report_node import OutboardReport


class OutboardExtension(ComfyExtension):
    """Registers the demo's model folder, the panel's routes and the prompt handler, then lists the nodes.

    All of it when it is made: older versions of ComfyUI call no hook but `get_node_list`.
    """

    def __init__(self) -> None:
        folder_paths.add_model_folder_path(FOLDER, str(MODEL_ROOT))
        routes.install()

    async def get_node_list(self) -> list[type[io.ComfyNode]]:
        return [
            OutboardUNETLoader,
            OutboardLoraLoader,
            OutboardKSampler,
            OutboardEngine,
            OutboardSettings,
            OutboardCacheSettings,
            OutboardReport,
            OutboardDigitPrompt,
            OutboardDigitDecode,
        ]
