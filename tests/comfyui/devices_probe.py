"""Run by ComfyUI's own Python: what its multi-GPU nodes make of an Outboard MODEL on a machine with two GPUs.

Arguments: ComfyUI's tree, this repository, a file. The second GPU is only claimed: nothing is put on it.
Prints one JSON object.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import logging
import runpy
import sys
from pathlib import Path
from typing import Any


def main(tree: str, repository: str, file: str) -> None:
    sys.path.insert(0, tree)
    sys.argv = sys.argv[:1]
    # Before comfy/, which has another utils, is put first on the path.
    importlib.import_module("utils.install_util")
    import comfy.options

    comfy.options.enable_args_parsing(False)
    from comfy.cli_args import args

    args.cpu = True
    import comfy.model_management as management
    import torch

    runpy.run_path(str(Path(repository) / "engine" / "start.py"))["register"](Path(repository))
    devices = [torch.device("cpu"), torch.device("cuda:1")]
    management.get_all_torch_devices = lambda **_: devices
    kept = Kept()
    logging.getLogger().addHandler(kept)
    found = asyncio.run(probe(patcher(file)))
    sys.stdout.write(json.dumps({**found, "log": kept.lines}) + "\n")


class Kept(logging.Handler):
    """Keeps every line."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def patcher(file: str) -> Any:
    """An Outboard MODEL whose engine is never reached."""
    import torch

    from outboard.engine.models.header import read_header
    from outboard.engine.models.registry import detect
    from outboard.nodes import skeleton
    from outboard.nodes.choice import EngineChoice
    from outboard.nodes.patcher import OutboardPatcher
    from outboard.nodes.remote import RemoteModel
    from outboard.nodes.session import Session
    from outboard.protocol.messages.common import ModelRef, ModelSettings

    cpu = torch.device("cpu")
    header = read_header(Path(file))
    model = skeleton.build(header, detect(header), torch.bfloat16, cpu, cpu)
    ref = ModelRef(name="flux1-dev.safetensors", size=header.size, digest=header.digest)
    model.outboard = RemoteModel(Session(EngineChoice()), ref, ModelSettings(), header.size)
    model.outboard_local = False
    model.outboard.load = lambda: None
    return OutboardPatcher(model, cpu, cpu)


async def probe(model: Any) -> dict[str, Any]:
    import torch
    from comfy_extras.nodes_multigpu import MultiGPUCFGSplitNode, SelectModelDeviceNode

    cpu = torch.device("cpu")
    split = MultiGPUCFGSplitNode.execute(model, 2).args[0]
    moved = SelectModelDeviceNode.execute(split, "gpu:1").args[0]
    onto_cpu = SelectModelDeviceNode.execute(moved, "cpu").args[0]
    for changed in (split, moved, onto_cpu, moved):
        changed.partially_load(cpu)
    return {
        "classes": [type(changed).__name__ for changed in (split, moved, onto_cpu)],
        "extra": [len(changed.get_additional_models()) for changed in (split, moved, onto_cpu)],
        "same": [changed.model is model.model for changed in (split, moved, onto_cpu)],
        "patched": sorted(onto_cpu.object_patches),
    }


if __name__ == "__main__":
    main(*sys.argv[1:])
