"""The demo's two ends in a graph: a digit as conditioning, and latents as pictures without a VAE."""

from __future__ import annotations

from typing import Any

from comfy_api.latest import io

from ..engine.demo import digits

EMPTY = "empty"
CHOICES = [*(str(digit) for digit in range(10)), EMPTY]


class OutboardDigitPrompt(io.ComfyNode):
    """The conditioning of one digit."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="OutboardDigitPrompt",
            display_name="Outboard Digit Prompt",
            category="outboard/demo",
            description="Asks the demo's model for a digit; empty is the prompt of nothing.",
            inputs=[io.Combo.Input("digit", options=CHOICES, default="7")],
            outputs=[io.Conditioning.Output()],
        )

    @classmethod
    def execute(cls, digit: str) -> io.NodeOutput:
        tables = digits.prompt(None if digit == EMPTY else int(digit))
        return io.NodeOutput([[tables["context"], {"pooled_output": tables["y"]}]])


class OutboardDigitDecode(io.ComfyNode):
    """The demo's latents as pictures."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="OutboardDigitDecode",
            display_name="Outboard Digit Decode",
            category="outboard/demo",
            description="Turns the demo's 8x8 latents into 32x32 pictures.",
            inputs=[io.Latent.Input("samples")],
            outputs=[io.Image.Output()],
        )

    @classmethod
    def execute(cls, samples: dict[str, Any]) -> io.NodeOutput:
        pictures = digits.decode(samples["samples"].cpu())
        return io.NodeOutput(pictures[..., None].repeat(1, 1, 1, 3))
