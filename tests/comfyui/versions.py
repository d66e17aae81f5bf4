"""The ComfyUI trees to test in: that of COMFYUI_PATH, and further versions.

COMFYUI_PATHS lists the further ones, separated as PATH is; without it, an old one is looked for beside the
first, in ~/ComfyUI-0.3.64.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

FIRST, OLD = "ComfyUI", "ComfyUI-0.3.64"
#: By version, the kinds of subjects that it has no network for, and the quantised files it reads otherwise.
LACKING: Mapping[str, frozenset[str]] = {
    "0.3.64": frozenset(
        {
            *("ernie", "flux2", "qwen-2511", "z-image"),
            *("tiny-flux-scaled.safetensors", "tiny-flux-mixed.safetensors", "tiny-flux-int.safetensors"),
            "sub/tiny-flux-table.safetensors",
        }
    ),
}


@dataclass(frozen=True)
class Version:
    """One tree. `python`: its interpreter."""

    tree: Path
    python: Path

    @property
    def name(self) -> str:
        """What the tree calls itself, else the number in its folder's name."""
        file = self.tree / "comfyui_version.py"
        text = file.read_text(encoding="utf-8") if file.is_file() else self.tree.name
        found = re.search(r"\d+\.\d+\.\d+", text)
        return found[0] if found else self.tree.name

    @property
    def old(self) -> bool:
        """Whether it lacks nodes that the tests use, and has some samplers that are not the engine's."""
        return self.name in LACKING

    @property
    def lacks(self) -> frozenset[str]:
        return LACKING.get(self.name, frozenset())

    @property
    def absence(self) -> str:
        """Why nothing can be tested in it; "" when it can."""
        if not (self.tree / "main.py").is_file():
            return f"there is no ComfyUI in {self.tree}"
        return "" if self.python.exists() else f"ComfyUI's Python {self.python} does not exist"


def first() -> Version:
    """The one that every test runs in; COMFYUI_PYTHON names its interpreter, else it is the tree's .venv."""
    tree = Path(os.environ.get("COMFYUI_PATH") or Path.home() / FIRST).expanduser()
    named = os.environ.get("COMFYUI_PYTHON")
    return Version(tree, Path(named) if named else _venv(tree))


def every() -> list[Version]:
    """The first and the further ones, each tree once, there or not."""
    listed = os.environ.get("COMFYUI_PATHS")
    paths = listed.split(os.pathsep) if listed else [str(Path.home() / OLD)]
    found = {first().tree.resolve(): first()}
    for tree in (Path(path).expanduser() for path in paths if path):
        found.setdefault(tree.resolve(), Version(tree, _venv(tree)))
    return list(found.values())


def _venv(tree: Path) -> Path:
    return tree / ".venv" / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
