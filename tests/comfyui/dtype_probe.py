"""Run by ComfyUI's own Python: the dtypes ComfyUI's loader gives each file, and those our skeleton has.

Arguments: ComfyUI's tree, this repository, the files. Prints one JSON list for each file and kind of device:
the dtype of the weights and that of computing, stock and ours, and the weight_dtype the engine would be told.
"""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path
from typing import Any

#: Devices by what they compute in: (bf16, fp16, fp8).
DEVICES = {
    "cpu": (False, False, False),
    "ampere": (True, True, False),
    "hopper": (True, True, True),
    "turing": (False, True, False),
}


def main(tree: str, repository: str, *files: str) -> None:
    sys.path.insert(0, tree)
    sys.argv = sys.argv[:1]
    import comfy.options

    comfy.options.enable_args_parsing(False)
    from comfy.cli_args import args

    args.cpu = True
    import comfy.model_management as management

    runpy.run_path(str(Path(repository) / "engine" / "start.py"))["register"](Path(repository))
    for device, (bf16, fp16, fp8) in DEVICES.items():
        management.should_use_bf16 = lambda *_, value=bf16, **__: value
        management.should_use_fp16 = lambda *_, value=fp16, **__: value
        management.supports_fp8_compute = lambda *_, value=fp8, **__: value
        for file in files:
            sys.stdout.write(json.dumps([Path(file).name, device, *probe(Path(file))]) + "\n")


def probe(file: Path) -> list[list[str] | str]:
    import comfy.sd
    import torch

    from outboard.engine.models.header import read_header
    from outboard.engine.models.registry import detect
    from outboard.nodes import skeleton, weight_dtype

    header, cpu = read_header(file), torch.device("cpu")
    ours = skeleton.build(header, detect(header), None, cpu, cpu)
    told = weight_dtype.held(ours, weight_dtype.DEFAULT)
    stock = [] if file.suffix == ".gguf" else dtypes(comfy.sd.load_diffusion_model(str(file)).model)
    return [stock, dtypes(ours), told]


def dtypes(model: Any) -> list[str]:
    return [str(model.get_dtype()), str(model.manual_cast_dtype or model.get_dtype())]


if __name__ == "__main__":
    main(*sys.argv[1:])
