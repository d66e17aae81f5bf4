"""The wire between ComfyUI and the engine; SPEC.md is the authority."""
