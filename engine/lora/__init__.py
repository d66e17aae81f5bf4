"""LoRA: files read by ComfyUI's names, and a model's weights changed in place by ComfyUI's arithmetic."""
