"""What the node matrix loads beside the usual files: second weights, LoRAs that fit, a FLUX-Fill."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from safetensors.torch import save_file

from comfyui import files, shapes
from comfyui.families import SMALL, WAN
from comfyui.graphs import FLUX, Subject

#: FLUX-Fill sees the latent, the masked picture and the mask of each 2x2 patch.
FILL = replace(FLUX, file="tiny-flux-fill.safetensors")
FILL_INPUTS = 4 * (16 + 16 + 64)


def other(subject: Subject) -> str:
    """The file of the same network with other weights."""
    return f"other-{subject.file}"


def lora(subject: Subject) -> str:
    return f"matrix-{subject.kind}.safetensors"


def make(models: Path) -> None:
    """Add them to ComfyUI's `models` folder."""
    unets, loras = models / "diffusion_models", models / "loras"
    flux = shapes.flux(files.HIDDEN, 2, 2, files.CONTEXT, files.POOLED)
    fill = flux | {"img_in.weight": (files.HIDDEN, FILL_INPUTS)}
    for seed, (subject, wanted) in enumerate(((FLUX, flux), (WAN, SMALL[WAN.file].shapes)), start=31):
        save_file(files.weights(wanted, seed), unets / other(subject))
        save_file(files.lora_for(unets / subject.file), loras / lora(subject))
    save_file(files.weights(fill, seed=33), unets / FILL.file)
