"""Everything behind the wire; never imports ComfyUI."""
