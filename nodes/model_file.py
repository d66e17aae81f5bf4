"""A file as ComfyUI lists it and as the engine knows it."""

from __future__ import annotations

import os
from pathlib import Path

import folder_paths

from ..engine.models.header import Header, read_header
from ..protocol.messages.common import ModelRef

FOLDER, LORAS = "diffusion_models", "loras"
GGUF = ".gguf"


def names() -> list[str]:
    """What ComfyUI lists, and the GGUF files of the same folders, which it leaves out."""
    listed: set[str] = set(folder_paths.get_filename_list(FOLDER))
    for folder in folder_paths.get_folder_paths(FOLDER):
        found, _ = folder_paths.recursive_search(folder, excluded_dir_names=[".git"])
        listed |= {name for name in found if name.endswith(GGUF)}
    return sorted(listed)


def find(name: str, folder: str = FOLDER) -> Header:
    """The header of a file by its name in ComfyUI's `folder`. Raises FileNotFoundError or a ModelError."""
    return read_header(Path(folder_paths.get_full_path_or_raise(folder, name)))


def wire_name(name: str) -> str:
    """A file's relative name as the engine is told it."""
    return name.replace(os.sep, "/")


def reference(name: str, header: Header) -> ModelRef:
    """How the engine is told of that file: relative name, size and header digest, never a path."""
    return ModelRef(name=wire_name(name), size=header.size, digest=header.digest)


def roots() -> dict[str, tuple[Path, ...]]:
    """The folders the engine may open files in: those ComfyUI lists diffusion models and LoRAs from."""
    return {
        kind: tuple(Path(folder).resolve() for folder in folder_paths.get_folder_paths(kind))
        for kind in (FOLDER, LORAS)
    }
