"""Run by ComfyUI's own Python: builds a MODEL from each file named on the command line and measures that.

Arguments: ComfyUI's tree, this repository, the files. Prints one JSON object for each.
"""

from __future__ import annotations

import importlib
import json
import resource
import runpy
import sys
import time
from pathlib import Path
from typing import Any


def main(tree: str, repository: str, *files: str) -> None:
    sys.path.insert(0, tree)
    sys.argv = sys.argv[:1]
    # Before comfy/, which has another utils, is put first on the path.
    importlib.import_module("utils.install_util")
    import comfy.options

    comfy.options.enable_args_parsing(False)
    from comfy.cli_args import args

    args.cpu = True
    import comfy.model_management

    runpy.run_path(str(Path(repository) / "engine" / "start.py"))["register"](Path(repository))
    for file in files:
        sys.stdout.write(json.dumps(probe(file)) + "\n")


def probe(file: str) -> dict[str, Any]:
    import torch

    from outboard.engine.models.header import read_header
    from outboard.engine.models.registry import detect
    from outboard.nodes import skeleton

    cpu = torch.device("cpu")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = time.perf_counter()
    header = read_header(Path(file))
    model = skeleton.build(header, detect(header), torch.bfloat16, cpu, cpu)
    seconds = time.perf_counter() - began
    weights = list(model.diffusion_model.parameters())
    found = {
        "seconds": seconds,
        "megabytes": (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024,
        "class": type(model).__name__,
        "weights": sum(weight.numel() for weight in weights),
        "devices": sorted({weight.device.type for weight in weights}),
        "sigmas": len(model.model_sampling.sigmas),
        "dtypes": [str(dtype) for dtype in model.model_config.supported_inference_dtypes],
    }
    return found | patcher(model, file)


def patcher(model: Any, file: str) -> dict[str, Any]:
    """What ComfyUI's memory manager is told of `model` by a patcher whose engine was never reached."""
    import torch

    from outboard.nodes.choice import EngineChoice
    from outboard.nodes.patcher import OutboardPatcher
    from outboard.nodes.remote import RemoteModel
    from outboard.nodes.session import Session
    from outboard.protocol.messages.common import ModelRef, ModelSettings

    cpu = torch.device("cpu")
    size = Path(file).stat().st_size
    ref = ModelRef(name="flux1-dev.safetensors", size=size, digest="0" * 32)
    model.outboard = RemoteModel(Session(EngineChoice()), ref, ModelSettings(), size)
    sizes = {}
    for local in (True, False):
        model.outboard_local = local
        held = OutboardPatcher(model, cpu, cpu)
        sizes[local] = [held.model_size(), held.loaded_size(), held.clone().model_size()]
    began = time.perf_counter()
    held.detach()
    del held
    return {"local": sizes[True], "elsewhere": sizes[False], "let_go": time.perf_counter() - began}


if __name__ == "__main__":
    main(*sys.argv[1:])
