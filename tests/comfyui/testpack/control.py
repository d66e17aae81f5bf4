"""A ControlNet without a network, whose residuals stay, are written to, or are made anew at every step."""

from __future__ import annotations

from typing import Any

import comfy.controlnet
import torch


class StandInControl(comfy.controlnet.ControlBase):  # type: ignore[misc]
    """`kind`: same, written or fresh. One object serves both first blocks, another the second single one."""

    def __init__(self, kind: str, tokens: int, width: int) -> None:
        super().__init__()
        self.kind = kind
        self.shape = (1, tokens, width)
        self.residuals: list[torch.Tensor] = []

    def pre_run(self, model: Any, percent_to_timestep_function: Any) -> None:
        super().pre_run(model, percent_to_timestep_function)
        generator = torch.Generator().manual_seed(31)
        self.residuals = [torch.randn(self.shape, generator=generator) / 4 for _ in range(2)]

    def get_control(self, *arguments: Any) -> dict[str, list[torch.Tensor | None]]:
        if self.kind == "written":
            for residual in self.residuals:
                residual.data.mul_(-0.9)
        if self.kind == "fresh":
            self.residuals = [residual.clone() for residual in self.residuals]
        first, second = self.residuals
        return {"input": [first, first], "middle": [], "output": [None, second]}


class TestControl:
    """Adds a StandInControl to a conditioning."""

    CATEGORY = "outboard/tests"
    FUNCTION = "make"
    RETURN_TYPES = ("CONDITIONING",)

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        number = ("INT", {"default": 1, "min": 1, "max": 65536})
        kinds = (["same", "written", "fresh"],)
        return {
            "required": {"conditioning": ("CONDITIONING",), "kind": kinds, "tokens": number, "width": number}
        }

    def make(self, conditioning: Any, kind: str, tokens: int, width: int) -> tuple[Any, ...]:
        control = StandInControl(kind, tokens, width)
        extra = {"control": control, "control_apply_to_uncond": False}
        return ([[context, {**given, **extra}] for context, given in conditioning],)
