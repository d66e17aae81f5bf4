"""Run by ComfyUI's own Python: loads a file as UNETLoader does and records what its raw network answers.

Arguments: ComfyUI's tree, the file, the inputs (a file of x, timestep, context, y, guidance), the output, and
the weight_dtypes to load it with.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path


def main(tree: str, file: str, inputs: str, output: str, *weight_dtypes: str) -> None:
    sys.path.insert(0, tree)
    sys.argv = sys.argv[:1]
    import comfy.options

    comfy.options.enable_args_parsing(False)
    from comfy.cli_args import args

    args.cpu = True
    import comfy.sd
    import torch

    runpy.run_path(str(Path(__file__).parent / "testpack" / "detection.py"))["install"]()
    from safetensors.torch import load_file, save_file

    chosen = {
        "default": {},
        "fp8_e4m3fn": {"dtype": torch.float8_e4m3fn},
        "fp8_e4m3fn_fast": {"dtype": torch.float8_e4m3fn, "fp8_optimizations": True},
        "fp8_e5m2": {"dtype": torch.float8_e5m2},
    }
    answers = {}
    for name in weight_dtypes:
        network = comfy.sd.load_diffusion_model(file, model_options=chosen[name]).model.diffusion_model
        given = load_file(inputs)
        x, timestep = given.pop("x"), given.pop("timestep")
        with torch.no_grad():
            answers[name] = network(x, timestep, **given).contiguous()
    save_file(answers, output)


if __name__ == "__main__":
    main(*sys.argv[1:])
