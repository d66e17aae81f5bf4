"""The package's own source files, for tests about the code itself."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ROOMS = ("protocol", "engine", "nodes")


def sources(*rooms: str) -> Iterator[Path]:
    """Yield the package's Python files, of the given rooms or of all, tests and scripts left out."""
    if not rooms:
        yield ROOT / "__init__.py"
    for room in rooms or ROOMS:
        yield from sorted((ROOT / room).rglob("*.py"))


def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def absolute_imports(path: Path) -> Iterator[str]:
    """Yield the top-level name of every absolute import in `path`."""
    for node in ast.walk(parse(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.module.partition(".")[0]
