"""Where the demo's trained files lie, and the few facts about them that need no torch."""

from __future__ import annotations

from pathlib import Path

ASSETS = Path(__file__).parent / "assets"
MODEL_ROOT = ASSETS / "diffusion_models"
"""A model root as ComfyUI and the engine list them: `MODEL_NAME` lies directly inside."""

MODEL_NAME = "outboard-digits.safetensors"
MODEL = MODEL_ROOT / MODEL_NAME
CONDITIONING = ASSETS / "digits_conditioning.safetensors"
JUDGE = ASSETS / "judge.safetensors"

PICTURE_SIZE = 32
LATENT_SHAPE = (16, 8, 8)
"""Channels, height, width of one latent; a picture is its 4 x 4 pixel shuffle."""
