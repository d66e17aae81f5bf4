"""ComfyUI's own module, run step by step in a process of ComfyUI's Python; a script, never imported here.

Reads one JSON object a line and answers each with one: `build` makes the module, `step` takes one step.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import sys
from collections.abc import Callable, Mapping
from time import perf_counter
from typing import Any

import torch

Reply = Mapping[str, Any]


class Stock:
    """One module of ComfyUI at a time, and the call it is asked for."""

    def __init__(self) -> None:
        self._step: Callable[[], torch.Tensor] | None = None

    def build(self, request: Mapping[str, Any]) -> Reply:
        """`module` and `name` of the class, its `arguments`, files of `weights` and `inputs`, and `dtype`."""
        from safetensors.torch import load_file

        dtype = getattr(torch, request["dtype"])
        operations = importlib.import_module("comfy.ops").disable_weight_init
        cls = getattr(importlib.import_module(request["module"]), request["name"])
        module = cls(**request["arguments"], dtype=dtype, device="cpu", operations=operations)
        # ComfyUI calls the weight of a norm `weight` in every family, when it reads a file that says `scale`.
        stored = load_file(request["weights"])
        weights = {re.sub(r"\.scale$", ".weight", name): tensor for name, tensor in stored.items()}
        module.load_state_dict(weights, strict=True)
        module = module.eval().requires_grad_(False)
        given = load_file(request["inputs"])
        timestep = given.pop("timestep")
        call = {name: tensor.to(dtype) for name, tensor in given.items()} | request["literals"]
        x = call.pop("x")
        self._step = lambda: module(x, timestep, **call)
        return {"torch": torch.__version__}

    def step(self, request: Mapping[str, Any]) -> Reply:
        """Take one step; with `output`, store what it gave in that file."""
        assert self._step is not None
        with torch.inference_mode():
            began = perf_counter()
            v = self._step()
            seconds = perf_counter() - began
        if request.get("output"):
            from safetensors.torch import save_file

            save_file({"v": v.float().contiguous()}, request["output"])
        return {"seconds": seconds}


def main() -> None:
    """Answer until standard input ends. What ComfyUI itself prints goes to standard error."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    sys.path[0] = sys.argv[1]
    del sys.argv[1:]
    sys.argv.append("--cpu")
    importlib.import_module("comfy.options").enable_args_parsing()
    torch.set_num_threads(1)
    stock = Stock()
    for line in sys.stdin:
        request = json.loads(line)
        answer = {"build": stock.build, "step": stock.step}[request.pop("do")](request)
        answers.write(f"{json.dumps(answer)}\n")
        answers.flush()


if __name__ == "__main__":
    main()
