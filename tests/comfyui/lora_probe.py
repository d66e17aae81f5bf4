"""Run by ComfyUI's own Python: loads a file as UNETLoader does, and LoRAs as its LoRA loaders do.

Arguments: ComfyUI's tree, the file, the inputs (a file of x, timestep, context, y, guidance), the output, and
JSON: for each name a list of [LoRA file, strength, bypass]. Records what the raw network answers, and every
changed weight as "<name>|<key>", dequantised in float32.
"""

from __future__ import annotations

import json
import sys


def main(tree: str, file: str, inputs: str, output: str, wanted: str) -> None:
    sys.path.insert(0, tree)
    sys.argv = sys.argv[:1]
    import comfy.options

    comfy.options.enable_args_parsing(False)
    from comfy.cli_args import args

    args.cpu = True
    import comfy.sd
    import comfy.utils
    import torch
    from comfy.quant_ops import QuantizedTensor
    from safetensors.torch import load_file, save_file

    def values(weight: torch.Tensor) -> torch.Tensor:
        if isinstance(weight, QuantizedTensor):
            weight = weight.to(torch.float32).dequantize()
        return weight.detach().float().contiguous().clone()

    found = {}
    for name, loras in json.loads(wanted).items():
        patcher = comfy.sd.load_diffusion_model(file)
        for path, strength, bypass in loras:
            lora = comfy.utils.load_torch_file(path, safe_load=True)
            loader = comfy.sd.load_bypass_lora_for_models if bypass else comfy.sd.load_lora_for_models
            patcher = loader(patcher, None, lora, strength, 0)[0]
        patcher.patch_model(device_to=torch.device("cpu"))
        given = load_file(inputs)
        x, timestep = given.pop("x"), given.pop("timestep")
        with torch.no_grad():
            found[name] = patcher.model.diffusion_model(x, timestep, **given).contiguous()
        for key in patcher.patches:
            found[f"{name}|{key}"] = values(comfy.utils.get_attr(patcher.model, key))
    save_file(found, output)


if __name__ == "__main__":
    main(*sys.argv[1:])
