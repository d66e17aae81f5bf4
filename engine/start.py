"""Runs the engine from a bare folder: makes it the package `outboard`, whatever it is called, and starts."""

from __future__ import annotations

import sys

if __name__ == "__main__":
    # The script's own folder is first on sys.path, and would shadow other top-level modules.
    del sys.path[0]

import importlib.util
from pathlib import Path


def register(root: Path) -> None:
    """Make `import outboard` mean the package whose `__init__.py` lies in `root`."""
    spec = importlib.util.spec_from_file_location(
        "outboard", root / "__init__.py", submodule_search_locations=[str(root)]
    )
    if spec is None or spec.loader is None:
        raise ImportError(f"{root} is not the outboard package")
    module = importlib.util.module_from_spec(spec)
    sys.modules["outboard"] = module
    spec.loader.exec_module(module)


def main(arguments: list[str]) -> int:
    """`rank` runs one worker; anything else is an `outboard` command."""
    register(Path(__file__).resolve().parents[1])
    if arguments[:1] == ["rank"]:
        worker = importlib.import_module("outboard.engine.rank.main")
        worker.main()
    cli = importlib.import_module("outboard.engine.cli")
    return int(cli.main(arguments))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
